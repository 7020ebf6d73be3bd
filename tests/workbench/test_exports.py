"""Exported networks, each read back by its own tool, or by a reader of its published grammar, and compared in numbers.

Oracles are the network's families themselves: the probability of each combination of levels, the mean of each row.
"""

import ast
import itertools
import json
import math
import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner

from fedbnsl.cli import fedbnsl as root
from fedbnsl.errors import ResultError, SetupError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.results.network_of_run import NetworkOfRun, fitted_network
from fedbnsl_workbench.network import Network
from fedbnsl_workbench.networks.exports.bif import identifiers
from fedbnsl_workbench.networks.exports.formats import KEPT, WRITTEN, available, export
from fedbnsl_workbench.simulate import simulate

# pgmpy tells of its own modules that will move.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:pgmpy")

LEVELS = {
    'a "b"': ["no", "yes"],
    "naïve β": ["<5", "5-10", ">10"],
    "1st; c, d": ['x "q"', "ü \\", "z,;()"],
    "table": ["0", "1"],
    "Table_": ["a b", "a_b", "A B"],
    "\\x//*": ["default", "table", "{}"],
}


def run_of(folder: Path, dictionary: dict[str, Any], tables: list[np.ndarray], **settings: Any) -> Path:
    described = Dictionary.model_validate(dictionary)
    plan = Plan.load("standard").with_dictionary(described, origin="here")
    plan = plan.with_settings(n_participants=len(tables), bootstrap=10, **settings)
    sites = {
        f"site-{k}": Dataset.of_values(tuple(dictionary), X, origin="here", dictionary=described, warn=False)
        for k, X in enumerate(tables)
    }
    simulate(plan, sites, folder)
    return folder


def categories(seed: int, n: int = 2000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a, b = (rng.random(n) < 0.4).astype(int), rng.integers(0, 3, n)
    c = np.where(rng.random(n) < 0.8, (a + b) % 3, rng.integers(0, 3, n))
    t = (rng.random(n) < 0.2 + 0.3 * a).astype(int)
    e, x = (np.where(rng.random(n) < 0.7, one, rng.integers(0, 3, n)) for one in (c, 2 - c))
    return np.column_stack([a, b, c, t, e, x]).astype(float)


@pytest.fixture(scope="module")
def discrete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = {"naïve β": "ordinal"} | {name: "binary" for name, own in LEVELS.items() if len(own) == 2}
    described = {name: {"kind": kinds.get(name, "nominal"), "levels": own} for name, own in LEVELS.items()}
    return run_of(tmp_path_factory.mktemp("discrete") / "run", described, [categories(1), categories(2)])


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x -> y <- z, whose directions are known; z - w and u - v, whose are not."""
    tables = list[np.ndarray]()
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x, z, u, *noise = rng.standard_normal((6, 1500))
        y = 40.0 + 0.8 * x - 1.5 * z + 0.5 * noise[0]
        tables.append(np.column_stack([x, y, z - 7.0, 2.0 * z + noise[1], u, 0.9 * u + noise[2]]))
    described = {name: {"unit": "mg/l"} for name in ("x", 'the "y"', "z", "wβ", "u", "v")}
    return run_of(
        tmp_path_factory.mktemp("linear") / "run", described, tables, look_for_curves=False, look_at_noise=False
    )


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Levels -> a number -> a number within a range, on a curve."""
    tables = list[np.ndarray]()
    for seed in range(2):
        rng = np.random.default_rng(seed)
        ward, sex = rng.integers(0, 3, 3000), rng.integers(0, 2, 3000)
        dose = np.array([0.0, 1.0, 3.0])[ward] + 1.2 * sex + rng.normal(0.0, 0.7, 3000)
        low = np.clip(np.square(dose) + rng.normal(0.0, 1.0, 3000), -5.0, 60.0)
        tables.append(np.column_stack([ward, sex, dose, low]).astype(float))
    described = {
        "ward": {"kind": "nominal", "levels": ["med", "surgery", "é c"], "tier": 1},
        "sex": {"kind": "binary", "levels": ["f", "m"], "tier": 1},
        "dose": {"tier": 2},
        "crp": {"range": [-5.0, 60.0], "tier": 3},
    }
    return run_of(tmp_path_factory.mktemp("hybrid") / "run", described, tables)


def pgmpy(module: str) -> Any:
    return import_module(f"pgmpy.{module}")


def written(run: Path, name: str, folder: Path) -> Path:
    """A file, exported by the command."""
    out = folder / f"network.{name}"
    result = CliRunner().invoke(root, ["network", "export", str(run), "--as", name, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


def rows_of_levels(fitted: NetworkOfRun) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """All combinations of levels, and their rows."""
    combinations = list(itertools.product(*(fitted.levels[name] for name in fitted.variables)))
    X = np.zeros((len(combinations), fitted.network.n_columns))
    for row, levels in zip(X, combinations, strict=True):
        for name, level in zip(fitted.variables, levels, strict=True):
            row[fitted.members(name)] = fitted.coded(name, level)
    return combinations, X


def joint(fitted: NetworkOfRun) -> dict[tuple[str, ...], float]:
    """The probability of every combination of levels."""
    combinations, X = rows_of_levels(fitted)
    p = np.exp(sum(one.log_density(X) for one in fitted.network.families.values()))
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    return dict(zip(combinations, p.tolist(), strict=True))


def agrees(fitted: NetworkOfRun, model: Any, names: dict[str, str], levels: dict[tuple[str, str], str]) -> None:
    """Marginals, and conditionals given a common effect, of pgmpy's own inference are those of the joint."""
    told, position = joint(fitted), {name: k for k, name in enumerate(fitted.variables)}
    assert model.check_model()
    inference = pgmpy("inference").VariableElimination(model)
    for given in ({}, {"1st; c, d": "ü \\"}, {"Table_": "A B", "table": "0"}):
        evidence = {names[name]: levels[name, level] for name, level in given.items()}
        whole = sum(p for at, p in told.items() if all(at[position[n]] == one for n, one in given.items()))
        for name in fitted.variables:
            if name in given:
                continue
            found = inference.query([names[name]], evidence=evidence, show_progress=False)
            for level in fitted.levels[name]:
                wanted = sum(
                    p
                    for at, p in told.items()
                    if at[position[name]] == level and all(at[position[n]] == one for n, one in given.items())
                )
                value = found.get_value(**{names[name]: levels[name, level]})
                assert value == pytest.approx(wanted / whole, abs=1e-9), (name, level, given)


def same_names(fitted: NetworkOfRun) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    return {name: name for name in fitted.variables}, {
        (name, level): level for name, own in fitted.levels.items() for level in own
    }


def renamed(text: str, fitted: NetworkOfRun) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Names and levels as comments of BIF map them."""
    names, levels = same_names(fitted)
    for new, kind, rest in re.findall(r"^// (\w+) is the (variable|level) (.*)$", text, re.MULTILINE):
        if kind == "variable":
            names[ast.literal_eval(rest)] = new
        else:
            level, name = re.fullmatch(r"""('.*'|".*") of ('.*'|".*")""", rest).groups()
            levels[ast.literal_eval(name), ast.literal_eval(level)] = new
    return names, levels


def test_bif_has_the_probabilities_of_the_network_by_pgmpy(discrete: Path, tmp_path: Path) -> None:
    fitted, file = fitted_network(discrete), written(discrete, "bif", tmp_path)
    text = file.read_text(encoding="utf-8")
    names, levels = renamed(text, fitted)
    assert all(re.fullmatch(r"[A-Za-z_]\w*", one, re.ASCII) for one in names.values())
    assert len({one.lower() for one in names.values()}) == len(names)
    # The first word of a line is one of the format, or a combination of levels: nothing else is left of the names.
    for line in text.splitlines():
        assert re.match(r"//|network|variable|probability|\}|  (type|table|\()", line), line
    agrees(fitted, pgmpy("readwrite").BIFReader(string=text).get_model(), names, levels)


def test_xmlbif_keeps_names_and_has_the_probabilities_of_the_network_by_pgmpy(discrete: Path, tmp_path: Path) -> None:
    fitted, file = fitted_network(discrete), written(discrete, "xmlbif", tmp_path)
    agrees(fitted, pgmpy("readwrite").XMLBIFReader(path=str(file)).get_model(), *same_names(fitted))


def test_the_discrete_network_of_pgmpy_has_the_probabilities_of_the_network(discrete: Path) -> None:
    fitted = fitted_network(discrete)
    model = Network.load(discrete).to_pgmpy()
    assert set(model.edges) == {(edge["source"], edge["target"]) for edge in Network.load(discrete).result["edges"]}
    agrees(fitted, model, *same_names(fitted))


def test_the_linear_network_of_pgmpy_has_the_means_and_covariances_of_the_network(linear: Path) -> None:
    fitted, model = fitted_network(linear), Network.load(linear).to_pgmpy()
    mean, covariance = model.to_joint_gaussian()
    order = [fitted.columns.names.index(name) for name in nx.topological_sort(model)]
    # pgmpy rounds both to eight decimals.
    assert mean == pytest.approx(fitted.means[order], rel=0.0, abs=5.01e-9)
    assert covariance == pytest.approx(fitted.learned.covariance[np.ix_(order, order)], rel=0.0, abs=5.01e-9)
    asked = Network.load(linear).ask("z", given={'the "y"': 38.0})
    at, z = (list(nx.topological_sort(model)).index(name) for name in ('the "y"', "z"))
    slope = covariance[z, at] / covariance[at, at]
    assert asked["mean"] == pytest.approx(mean[z] + slope * (38.0 - mean[at]), abs=1e-6)
    kept = pgmpy("models").LinearGaussianBayesianNetwork.load(str(linear / "lgbn.json"))
    for name in fitted.variables:
        one, other = kept.get_cpds(name), model.get_cpds(name)
        assert dict(zip(one.evidence, one.beta[1:].tolist(), strict=True)) == pytest.approx(
            dict(zip(other.evidence, other.beta[1:].tolist(), strict=True)), rel=1e-12
        )
        assert one.std == pytest.approx(other.std, rel=1e-12)


def test_igraph_has_the_graph_as_an_object_and_from_the_run_folder(linear: Path) -> None:
    igraph: Any = import_module("igraph")
    told = Network.load(linear)
    graph = told.to_igraph()
    assert graph.is_directed()
    names = graph.vs["name"]
    assert {(names[one.source], names[one.target]) for one in graph.es} == set(told.graph().edges)
    assert sorted(graph.es["weight"]) == sorted(w for *_, w in told.graph().edges(data="weight"))
    assert {("u", "v"), ("v", "u")} <= set(told.graph().edges)
    read = igraph.Graph.Read_GraphML(str(linear / "graph.graphml"))
    arcs = {(read.vs[one.source]["name"], read.vs[one.target]["name"], one["directed"]) for one in read.es}
    assert arcs == {(edge["source"], edge["target"], edge["directed"]) for edge in told.result["edges"]}


def run_r(script: str, *arguments: str | Path) -> str:
    if shutil.which("Rscript") is None:
        pytest.skip("needs R (Debian: r-base-core)")
    ended = subprocess.run(
        ["Rscript", "-", *map(str, arguments)],
        input=script,
        capture_output=True,
        check=False,
        timeout=120,
        encoding="utf-8",
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# Of bnlearn, what the code calls: so that its numbers are read where R is there, and bnlearn is not.
STAND_INS = """
library <- function(...) NULL
empty.graph <- function(nodes) list(nodes = nodes, arcs = matrix("", 0, 2))
"arcs<-" <- function(dag, value) { dag$arcs <- value; dag }
parents <- function(dag, node) intersect(dag$nodes, dag$arcs[dag$arcs[, 2] == node, 1])
custom.fit <- function(dag, dist) { stopifnot(setequal(names(dist), dag$nodes)); dist }
"""
NUMBERS = """
options(digits = 17)
source(commandArgs(TRUE)[1], encoding = "UTF-8")
for (node in names(network)) {
  one <- network[[node]]
  prob <- if (is.list(one)) one$prob else one
  if (!is.null(prob)) {
    at <- expand.grid(dimnames(prob), stringsAsFactors = FALSE)
    said <- c(node, parents(dag, node))
    for (k in seq_len(nrow(at)))
      writeLines(paste(c("p", format(prob[k]), rbind(said, unlist(at[k, ]))), collapse = "\\t"))
  } else {
    coef <- if (is.null(one$coefficients)) one$coef else one$coefficients
    coef <- if (is.matrix(coef)) coef else t(t(coef))
    for (term in rownames(coef))
      writeLines(paste(c("c", node, term, format(one$sd[1]), format(coef[term, ])), collapse = "\\t"))
  }
}
"""


@pytest.fixture(params=["bnlearn", "R alone"])
def prelude(request: pytest.FixtureRequest) -> str:
    if request.param == "R alone":
        return STAND_INS
    if run_r('cat(requireNamespace("bnlearn", quietly = TRUE))') != "TRUE":
        pytest.skip("needs the R package bnlearn")
    return ""


def test_bnlearn_has_the_tables_of_the_network(discrete: Path, tmp_path: Path, prelude: str) -> None:
    fitted, file = fitted_network(discrete), written(discrete, "bnlearn", tmp_path)
    rows = [line.split("\t") for line in run_r(prelude + NUMBERS, file).splitlines() if line.startswith("p\t")]
    assert {row[2] for row in rows} == set(LEVELS)
    for _, value, *pairs in rows:
        at = dict(zip(pairs[::2], pairs[1::2], strict=True))
        X = np.zeros((1, fitted.network.n_columns))
        for name, level in at.items():
            X[0, fitted.members(name)] = fitted.coded(name, level)
        assert float(value) == pytest.approx(math.exp(fitted.network.families[pairs[0]].log_density(X)[0]), abs=1e-12)


def test_bnlearn_has_the_lines_of_a_hybrid_network_and_the_file_says_what_it_lacks(
    hybrid: Path, tmp_path: Path, prelude: str
) -> None:
    fitted, file = fitted_network(hybrid), written(hybrid, "bnlearn", tmp_path)
    text = file.read_text(encoding="utf-8")
    assert "# the effect of 'dose' on 'crp' is a curve: a straight line stands for it" in text
    assert "# 'crp' has values from -5 to 60: here it is normal, without ends" in text
    told = {
        (row[1], row[2]): list(map(float, row[3:]))
        for row in (line.split("\t") for line in run_r(prelude + NUMBERS, file).splitlines())
        if row[0] == "c"
    }
    sd, *intercepts = told["dose", "(Intercept)"]
    assert sd == pytest.approx(fitted.network.families["dose"].noise_std, rel=1e-9)
    # Of levels, the first parent's change fastest.
    for k, (sex, ward) in enumerate(itertools.product(["f", "m"], ["med", "surgery", "é c"])):
        X = np.zeros((1, fitted.network.n_columns))
        X[0, fitted.members("ward")] = fitted.coded("ward", ward)
        X[0, fitted.members("sex")] = fitted.coded("sex", sex)
        wanted = fitted.network.families["dose"].mean(X)[0, 0]
        assert intercepts[k] == pytest.approx(wanted, abs=0.02 * sd), (sex, ward)
    S, means = fitted.learned.covariance, fitted.means
    dose, crp = (fitted.columns.names.index(name) for name in ("dose", "crp"))
    slope = S[dose, crp] / S[dose, dose]
    assert told["crp", "dose"][1] == pytest.approx(slope, rel=1e-9)
    assert told["crp", "(Intercept)"][1] == pytest.approx(means[crp] - slope * means[dose], rel=1e-9)
    assert told["crp", "dose"][0] == pytest.approx(math.sqrt(S[crp, crp] - slope * S[dose, crp]), rel=1e-9)


def test_bnlearn_reads_the_bif_file(discrete: Path, tmp_path: Path) -> None:
    if run_r('cat(requireNamespace("bnlearn", quietly = TRUE))') != "TRUE":
        pytest.skip("needs the R package bnlearn")
    file = written(discrete, "bif", tmp_path)
    arcs = run_r("cat(t(bnlearn::arcs(bnlearn::read.bif(commandArgs(TRUE)[1]))))", file).split()
    names, _ = renamed(file.read_text(encoding="utf-8"), fitted_network(discrete))
    told = {(names[edge["source"]], names[edge["target"]]) for edge in Network.load(discrete).result["edges"]}
    assert set(zip(arcs[::2], arcs[1::2], strict=True)) == told


def test_pcalg_has_a_one_in_the_row_of_the_child(linear: Path, tmp_path: Path) -> None:
    file = written(linear, "pcalg", tmp_path)
    text = file.read_text(encoding="utf-8")
    (listed,) = re.findall(r"^variables <- c\((.*)\)$", text, re.MULTILINE)
    plain = re.sub(r"\\u\{(\w+)\}", lambda one: chr(int(one[1], 16)), listed)
    names = ast.literal_eval(f"[{plain}]")
    (places,) = re.findall(r"cbind\(c\((.*?)\), c\((.*?)\)\)", text)
    ones = {(names[int(a) - 1], names[int(b) - 1]) for a, b in zip(*(one.split(", ") for one in places), strict=True)}
    edges = Network.load(linear).result["edges"]
    assert {edge["directed"] for edge in edges} == {True, False}
    assert ones == {(target, source) for source, target in Network.load(linear).graph().edges}


def test_r_builds_the_matrix_of_pcalg(linear: Path, tmp_path: Path) -> None:
    script = 'source(commandArgs(TRUE)[1], encoding = "UTF-8")\ncat(amat[\'the "y"\', "x"], amat["x", \'the "y"\'], '
    script += 'amat["u", "v"], amat["v", "u"], sum(amat), rownames(amat)[4])'
    n = len(Network.load(linear).graph().edges)
    assert run_r(script, written(linear, "pcalg", tmp_path)) == f"1 0 1 1 {n} wβ"


def test_causal_learn_reads_the_text_of_tetrad(linear: Path, tmp_path: Path) -> None:
    reader: Any = import_module("causallearn.utils.TXT2GeneralGraph")
    graph = reader.txt2generalgraph(str(written(linear, "tetrad", tmp_path)))
    found = set[tuple[str, str]]()
    for edge in graph.get_graph_edges():
        ends = edge.get_node1().get_name(), edge.get_node2().get_name()
        marks = edge.get_endpoint1().name, edge.get_endpoint2().name
        assert marks in (("TAIL", "ARROW"), ("TAIL", "TAIL"))
        found |= {ends} if marks[1] == "ARROW" else {ends, ends[::-1]}
    known = {name: re.sub(r"[\s;,]", "_", name) for name in Network.load(linear).variables}
    assert {node.get_name() for node in graph.get_nodes()} == set(known.values())
    assert found == {(known[source], known[target]) for source, target in Network.load(linear).graph().edges}


def test_json_holds_curves_and_ranges_as_the_network_computes_them(hybrid: Path, tmp_path: Path) -> None:
    content = json.loads(written(hybrid, "json", tmp_path).read_text(encoding="utf-8"))
    fitted, told = fitted_network(hybrid), content["families"]["crp"]
    assert told["bends"]
    assert [told["low"], told["high"]] == [-5.0, 60.0]
    columns = [one["name"] for one in content["columns"]]
    assert columns == list(fitted.columns.names)
    X = np.zeros((2, len(columns)))
    X[:, columns.index("dose")], X[0, columns.index("ward=é c")] = [4.0, -2.0], 1.0
    for row, location in zip(X.tolist(), fitted.network.families["crp"].location(X), strict=True):
        at = told["intercept"] + sum(w * row[k] for w, k in zip(told["weights"], told["lines"], strict=True))
        for one in told["bends"]:
            x, points, adds = row[one["parent"]], one["at"], one["adds"]
            k = min(max(sum(point < x for point in points) - 1, 0), len(points) - 2)
            at += adds[k] + (adds[k + 1] - adds[k]) / (points[k + 1] - points[k]) * (x - points[k])
        assert at == pytest.approx(location, rel=1e-12)


def test_what_a_format_cannot_hold_is_refused_with_one_that_can(linear: Path, hybrid: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"levels alone; there are numbers: 'x'") as refused:
        export(linear, "bif", tmp_path / "x.bif")
    assert "bnlearn" in str(refused.value.remedy)
    assert not list(tmp_path.iterdir())
    with pytest.raises(SetupError, match=r"no network of numbers and levels together"):
        Network.load(hybrid).to_pgmpy()
    with pytest.raises(SetupError, match=r"no format 'spss'; expected one of bif, xmlbif"):
        export(linear, "spss", tmp_path / "x")
    export(linear, "csv", tmp_path / "edges.csv")
    assert (tmp_path / "edges.csv").read_bytes() == (linear / "edges.csv").read_bytes()
    with pytest.raises(SetupError, match="is not overwritten"):
        export(linear, "pcalg", tmp_path / "edges.csv")
    rows = {row["format"]: row for row in available(linear)}
    assert rows.keys() == {*WRITTEN, *KEPT}
    assert rows["bif"]["why_not"]
    assert rows["bnlearn"]["why_not"] is None
    (linear / "strength.csv").rename(tmp_path / "away")
    try:
        with pytest.raises(ResultError, match=r"has no strength\.csv"):
            export(linear, "strength", tmp_path / "strength.csv")
    finally:
        (tmp_path / "away").rename(linear / "strength.csv")


def test_levels_that_depend_on_a_number_are_refused_for_bnlearn_and_told_as_odds_in_json(tmp_path: Path) -> None:
    tables = list[np.ndarray]()
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x = rng.normal(5.0, 2.0, 2000)
        tables.append(np.column_stack([x, rng.random(2000) < 1.0 / (1.0 + np.exp(5.0 - x))]).astype(float))
    described = {"age": {"tier": 1}, "dead": {"kind": "binary", "levels": ["no", "yes"], "tier": 2}}
    run = run_of(tmp_path / "run", described, tables)
    with pytest.raises(SetupError, match="as 'dead' does on 'age'"):
        export(run, "bnlearn", tmp_path / "x.R")
    export(run, "json", tmp_path / "x.json")
    told = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["families"]["dead"]
    fitted = fitted_network(run)
    eta = told["intercepts"][0] + 6.0 * told["weights"][0][0]
    X = np.zeros((1, fitted.network.n_columns))
    X[0, fitted.members("age")] = 6.0
    assert told["family"] == "levels"
    assert told["by_odds"]
    assert fitted.network.families["dead"].mean(X)[0, 0] == pytest.approx(1.0 / (1.0 + math.exp(-eta)), rel=1e-12)


def test_the_terminal_says_which_member_of_the_class_is_taken(linear: Path, tmp_path: Path) -> None:
    out = tmp_path / "network.R"
    result = CliRunner().invoke(root, ["network", "export", str(linear), "--as", "bnlearn", "--out", str(out)])
    line = "2 edges may point the other way: 'z' - 'wβ', 'u' - 'v'"
    assert line in result.output
    assert line in out.read_text(encoding="utf-8")
    listed = CliRunner().invoke(root, ["network", "export", str(linear), "--json"])
    assert {row["format"] for row in json.loads(listed.stdout)["formats"]} == {*WRITTEN, *KEPT}


def test_identifiers_differ_whatever_the_names() -> None:
    names = ["a b", "a_b", "A B", "ä", "a", "1", "_1", "network", "network_", "", "日本", "東京", "a_b_2"]
    found = identifiers(names)
    assert len({one.lower() for one in found}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z_]\w*", one, re.ASCII) for one in found)
    assert {"a_b", "a", "_1", "network_", "a_b_2"} <= set(found)  # names that need no change keep theirs
