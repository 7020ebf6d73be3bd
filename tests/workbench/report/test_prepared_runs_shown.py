"""Runs that prepare their columns, one variable of which has several: the page, the summary, scores, the notebook."""

import csv
import io
import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser
from rich.console import Console

from command_line import run_command
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.results.effect_report import effect_report
from fedbnsl_server.results.learned_network import read_network
from fedbnsl_workbench.estimator import FedSparseBNSL
from fedbnsl_workbench.report.dag_drawing import STYLES
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.scoring.evaluation import evaluate
from fedbnsl_workbench.simulate import simulate
from report_runs import Page

WARD = Dictionary.model_validate(
    {
        "age": {"unit": "years", "range": [0, 110]},
        "sex": {"kind": "binary", "levels": ["f", "m"]},
        "blood": {"kind": "nominal", "levels": ["0", "A", "B", "AB"]},
        "crp": {"unit": "mg/l", "range": [0, 500], "transform": "log1p"},
    }
)
COLUMNS = ("age", "sex", "blood=A", "blood=B", "blood=AB", "crp")
ROWS = {"north": 600, "south": 3000}
REFITTED = {
    "rounds": 30,
    "l1_weight": 0.02,
    "threshold": 0.1,
    "preparation": {"intercept": "common", "weighting": "sites"},
    "knowledge": {"tiers": [["age", "sex", "blood"], ["crp"]]},
}
BLOCK = "blood is a block of indicator columns, one for each level but the first; "


def codes(n: int, seed: int) -> Matrix:
    """(n, 4) codes of blood -> crp <- age, with 3 % of the cells missing and another mean age at each site."""
    rng = np.random.default_rng(seed)
    age, sex, blood = 40.0 + 20.0 * seed + 8.0 * rng.normal(size=n), rng.integers(0, 2, n), rng.integers(0, 4, n)
    log_crp = (
        2.0 + 0.05 * (age - 40.0 - 20.0 * seed) + np.array([0.0, -0.8, 0.0, 1.5])[blood] + 0.5 * rng.normal(size=n)
    )
    found = np.column_stack([age, sex, blood, np.expm1(np.clip(log_crp, 0.0, 6.0))]).astype(np.float64)
    found[rng.random(found.shape) < 0.03] = np.nan
    return found


CODES = {site: codes(n, seed) for seed, (site, n) in enumerate(ROWS.items())}
COMPLETE = {site: int((~np.isnan(X).any(axis=1)).sum()) for site, X in CODES.items()}


def table_of(X: Matrix) -> Dataset:
    return Dataset.of_values(WARD.variables, X, origin="a table", dictionary=WARD, warn=False)


def values_of(X: Matrix) -> Matrix:
    """The columns by hand, NaN in the gaps."""
    levels = np.where(np.isnan(X[:, [2]]), np.nan, X[:, [2]] == [1, 2, 3])
    return np.column_stack([X[:, 0], X[:, 1], levels, np.log1p(X[:, 3])])


def columns_of(X: Matrix) -> Matrix:
    """The columns of the complete rows, by hand."""
    return values_of(X[~np.isnan(X).any(axis=1)])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "truth.csv").write_text("source,target,weight\nblood,crp,1.5\nage,crp,0.05\n", encoding="utf-8")
    plans = {
        "standard": Plan.load("standard"),
        "equal": Plan.load("standard").with_settings(graph_class="dag-equal-variance", threshold=0.05),
        "private": Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=50.0),
        "refitted": Plan.parse(REFITTED),
        "raw": Plan.load("standard").with_settings(preparation={"intercept": "none", "scale": "none"}),
    }
    for name, plan in plans.items():
        plan = plan.with_dictionary(WARD, origin="the test").with_settings(n_participants=2)
        seed = 1 if plan.privacy else None
        simulate(plan, {site: table_of(X) for site, X in CODES.items()}, folder / name, noise_seed=seed)
    return {name: folder / name for name in plans}


@pytest.fixture(scope="module")
def pages(runs: dict[str, Path]) -> dict[str, Page]:
    paths = {name: write_report(run, truth=run.parent / "truth.csv") for name, run in runs.items()}
    return {name: Page(path.read_text(encoding="utf-8")) for name, path in paths.items()}


def result_of(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return result


def rows_of(page: Page, table: str) -> dict[str, list[str]]:
    """Rows by their first cell, without the header."""
    return {row[0]: row[1:] for row in page.tables[table][1:]}


# ---- results -------------------------------------------------------------------------------------------------------


def test_rows_used_are_counted_without_privacy_and_unknown_with_it(
    runs: dict[str, Path], pages: dict[str, Page]
) -> None:
    rows, used = sum(ROWS.values()), sum(COMPLETE.values())
    assert f"rows, all sites {rows:,}, of which {used:,} used" in pages["raw"].text
    said = f"rows, all sites {rows:,}, of which {used:,} without a missing value"
    assert said in pages["standard"].text, "EM uses all"
    assert f"rows, all sites {rows:,} rounds" in pages["private"].text
    for name, run in runs.items():
        used = {site: of["rows_used"] for site, of in result_of(run)["sites"].items()}
        by_em = name in ("standard", "equal")
        assert used == (dict.fromkeys(ROWS) if name == "private" else ROWS if by_em else COMPLETE)


def test_units_stand_in_the_result_and_beside_the_names_of_variables_on_page_and_terminal(
    runs: dict[str, Path], pages: dict[str, Page]
) -> None:
    result = result_of(runs["standard"])
    assert result["units"] == {"age": "years", "crp": "log1p mg/l"}
    assert pages["standard"].units == result["units"]
    terminal = Console(width=200, record=True, file=io.StringIO())
    print_summary(result, runs["standard"], terminal, seconds=1.0)
    assert "crp (log1p mg/l)" in terminal.export_text()


def test_which_level_of_a_binary_variable_is_1_is_said_on_page_terminal_and_beside_its_effects(
    runs: dict[str, Path], pages: dict[str, Page]
) -> None:
    result, text = result_of(runs["standard"]), io.StringIO()
    assert result["levels"] == {"sex": ["f", "m"]}
    assert "Levels: sex: 1 = m" in pages["standard"].text
    edge = next(edge for edge in result["edges"] if "coefficients" not in edge)
    with_sex = {**result, "edges": [{**edge, "source": "sex"}], "hidden_causes": None}
    print_summary(with_sex, runs["standard"], Console(file=text, width=200), seconds=1.0)
    assert "sex: 1 = m" in text.getvalue()
    network = read_network(runs["standard"])
    report = effect_report(network, [result["variables"].index("sex")], result["variables"].index("crp"), {1})
    assert "levels: sex: 1 = m" in report["in_words"]


# ---- the section ---------------------------------------------------------------------------------------------------


def test_the_page_says_what_was_taken_off_and_divided_by(pages: dict[str, Page]) -> None:
    standard, private, refitted, raw = (pages[name].text for name in ("standard", "private", "refitted", "raw"))
    assert all(("h2", "How the columns were prepared") in page.headings for page in pages.values())
    assert "Each site took its own means off its columns. Sites told them;" in standard
    assert "Each site took its own noisy means off its columns, as its paid release told them." in private
    assert "The mean of each column over all sites was taken off" in refitted
    assert "Nothing was taken off the columns" in raw
    for text in (standard, private, refitted):
        assert "its standard deviation about what was taken off, pooled over all sites" in text
    assert "The columns were not divided by anything" in raw
    assert "a site weighs as its rows" in standard
    assert "each site weighs the same, whatever its rows" in refitted
    assert all(page.text.count(BLOCK) == 1 for page in pages.values())


def test_an_edge_of_several_levels_is_drawn_without_a_sign(runs: dict[str, Path], tmp_path: Path) -> None:
    page = write_report(runs["standard"], out=tmp_path / "page.html").read_text(encoding="utf-8")
    drawn = re.findall(r'<g class="edge (\w+)".*?<title>(\w+) . (\w+)', page)
    assert {(kind, frozenset(pair)) for kind, *pair in drawn if "crp" in pair} == {
        ("levels", frozenset({"blood", "crp"})),
        ("positive", frozenset({"age", "crp"})),
    }
    assert STYLES["levels"].meaning in page


def test_variables_are_told_with_what_the_dictionary_says_and_their_scales(
    runs: dict[str, Path], pages: dict[str, Page]
) -> None:
    header, *_ = pages["standard"].tables["prepared-variables"]
    assert header == ["variable", "kind", "unit", "range", "transform", "levels", "divided by"]
    rows = rows_of(pages["standard"], "prepared-variables")
    assert rows["age"][:-1] == ["continuous", "years", "0 to 110", "\u2013", "\u2013"]
    assert rows["sex"][:-1] == ["binary", "\u2013", "\u2013", "\u2013", "f, m"]
    assert rows["blood"][:-1] == ["nominal", "\u2013", "\u2013", "\u2013", "0, A, B, AB"]
    assert rows["crp"][:-1] == ["continuous", "mg/l", "0 to 500", "log1p", "\u2013"]
    # Pooled about the means of each site, over the values that are there.
    centred = np.concatenate([X - np.nanmean(X, axis=0) for X in map(values_of, CODES.values())])
    deviation = dict(zip(COLUMNS, np.sqrt(np.nanmean(centred**2, axis=0)).tolist(), strict=True))
    assert float(rows["age"][-1]) == pytest.approx(deviation["age"], rel=1e-3)
    assert float(rows["crp"][-1]) == pytest.approx(deviation["crp"], rel=1e-3)
    blocks = dict(part.split(" ") for part in rows["blood"][-1].split(", "))
    assert {f"blood={level}": pytest.approx(float(scale), rel=1e-3) for level, scale in blocks.items()} == {
        name: deviation[name] for name in COLUMNS[2:5]
    }
    assert "taken off" in pages["refitted"].tables["prepared-variables"][0], "a common mean is no secret of a site"
    centres = result_of(runs["refitted"])["preparation"]["centres"]
    assert float(rows_of(pages["refitted"], "prepared-variables")["age"][-2]) == pytest.approx(centres["age"], rel=1e-3)


def test_rows_used_and_left_out_are_told_by_site_and_in_private_runs_by_the_site_alone(
    runs: dict[str, Path], pages: dict[str, Page]
) -> None:
    for site, row in rows_of(pages["standard"], "prepared-rows").items():
        assert row == [f"{ROWS[site]:,}", f"{ROWS[site]:,}", "0 (0.0%)"]
    iterations = result_of(runs["standard"])["gaps"]["iterations"]
    assert (
        f"Rows with gaps were used: means and covariances of maximum likelihood completed their sums, in {iterations} "
        "iterations of EM" in pages["standard"].text
    )
    assert "Rows that lack a value of a used variable were left out" in pages["raw"].text
    for site, (rows, used, left_out) in rows_of(pages["raw"], "prepared-rows").items():
        gone = ROWS[site] - COMPLETE[site]
        assert (rows, used) == (f"{ROWS[site]:,}", f"{COMPLETE[site]:,}")
        assert left_out == f"{gone:,} ({100 * gone / ROWS[site]:.1f}%)"
    private = pages["private"]
    assert "prepared-rows" not in private.tables
    assert "how many rows a site has used is known at that site alone" in private.text
    assert not any(f"{used:,}" in private.text.split("SHA-256")[0] for used in COMPLETE.values())


def test_a_run_that_took_its_columns_as_they_are_has_no_such_section(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tables = {site: Dataset(("a", "b"), rng.normal(size=(50, 2))) for site in ("x", "y")}
    simulate(Plan.parse({"rounds": 3, "n_participants": 2}), tables, tmp_path / "run")
    page = Page(write_report(tmp_path / "run").read_text(encoding="utf-8"))
    assert "prepared" not in page.text
    assert "without units" not in page.text
    assert "Tables are used in the units that they come in, without centring or scaling" in page.text


# ---- edges, weights and variances ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["standard", "private", "refitted"])
def test_edges_are_sorted_and_shown_with_weights_without_units(
    name: str, runs: dict[str, Path], pages: dict[str, Page]
) -> None:
    edges = [(edge["source"], edge["target"]) for edge in result_of(runs[name])["edges"]]
    scales = result_of(runs[name])["preparation"]["scales"]
    if name == "private":  # these are noisy
        network = read_network(runs[name])
        scales = dict(zip(network.columns.names, network.spread.tolist(), strict=True))
    rows, shown = pages[name].tables["edges"], pages[name].edges()
    assert {tuple(end.partition("=")[0] for end in pair) for pair in shown} == set(edges) >= {("blood", "crp")}
    strengths = [abs(float(row["without units"])) for row in shown.values()]
    assert strengths == sorted(strengths, reverse=True)
    ((level, block),) = ((source, row) for (source, _), row in shown.items() if source.startswith("blood="))
    assert block["verdict"] == "correct"
    assert block["truth"] == block["difference"] == "\u2013", "no single weight is that of a block"
    (listed,) = (row[0] for row in rows if len(row) == 1 and "blood \u2192 crp" in row[0])
    found = re.findall(r"blood=(\w+) \u2192 crp: ([-+.\d]+) \(without units ([-+.\d]+)\)", listed)
    coefficients = {level: (float(weight), float(without)) for level, weight, without in found}
    assert set(coefficients) == {"A", "B", "AB"}
    for own, (weight, without) in coefficients.items():
        assert without == pytest.approx(weight * scales[f"blood={own}"] / scales["crp"], abs=2e-3)
    assert level == f"blood={max(coefficients, key=lambda own: abs(coefficients[own][1]))}"
    assert float(block["without units"]) == max((one for _, one in coefficients.values()), key=abs)


def test_the_strongest_line_of_the_drawing_is_that_of_the_largest_weight_without_units(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for path in runs["equal"].glob("*.*"):
        (run / path.name).write_bytes(path.read_bytes())
    result = result_of(run)
    result["edges"] = [
        {"source": "sex", "target": "age", "weight": 9.0, "standardised": 0.055},
        {"source": "age", "target": "crp", "weight": 0.08, "standardised": 0.4},
    ]
    (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    html = write_report(run).read_text(encoding="utf-8")
    widths = dict(re.findall(r"<title>(\w+) \u2192.*?</title><path [^>]*stroke-width=\"([\d.]+)\"", html, re.DOTALL))
    assert float(widths["age"]) > 2 * float(widths["sex"])
    page = Page(html)
    assert [source for source, _ in page.edges()] == ["age", "sex"]
    assert "1 of 2 edges lies within 20% of the threshold 0.05" in page.text
    assert "the largest weight is age \u2192 crp (+0.08, without units +0.40)" in page.text


def test_estimates_are_called_what_they_are(pages: dict[str, Page]) -> None:
    standard, equal, refitted, raw = (pages[name].text for name in ("standard", "equal", "refitted", "raw"))
    own = "with an intercept of each site's own, on "
    for text in (standard, equal):
        assert own + "the graph that was searched, from the sites' moments, pooled over their rows" in text
    assert "The search alone decided which edges there are: no threshold cut any." in standard
    assert "Edges whose coefficient without units was at most 0.05" in equal
    assert "the average of the sites' least-squares coefficients, with one intercept, by the mean of all " in refitted
    assert "all raw weights without units above 0.05" in refitted
    assert "least-squares coefficient, without intercept, on a DAG of the class that was searched, from" in raw
    assert (
        "The estimate of an undirected edge is that of source \u2192 target in this DAG; another DAG of the class"
        in raw
    )
    for name in ("standard", "equal", "private", "refitted"):
        for wrong in (
            "without intercept",
            "no intercept",
            "without centring",
            "in their own units",
            "by absolute weight.",
        ):
            assert wrong not in pages[name].text, (name, wrong)


def test_equal_variances_are_asked_for_in_the_units_that_the_run_compares(
    runs: dict[str, Path], pages: dict[str, Page]
) -> None:
    assert "residual variance in the data dictionary's units, after its transforms." in pages["equal"].text
    assert "residual variance without units, as shares of the columns' pooled variances." in pages["refitted"].text
    shown = {name: _variances(page) for name, page in pages.items()}
    for name in ("standard", "equal", "refitted"):
        assert set(shown[name]) == set(COLUMNS)
        network = json.loads((runs[name] / "lgbn.json").read_text(encoding="utf-8"))["cpds"]
        scales = result_of(runs[name])["preparation"]["scales"]
        for column in COLUMNS:
            (variance,) = network[column]["variance"]
            unit = scales[column] if name == "refitted" else 1.0
            assert shown[name][column] == pytest.approx(variance / unit**2, rel=1e-3)


def _variances(page: Page) -> dict[str, float]:
    assert ["column", "residual variance"] in page.tables[None]
    return {row[0]: float(row[1]) for row in page.tables[None] if len(row) == 2 and row[0] in COLUMNS}


def test_the_weight_map_is_over_columns_and_the_drawing_over_variables(pages: dict[str, Page]) -> None:
    page = pages["standard"]
    labels = [attributes.get("aria-label", "") for tag, attributes in page.tags if tag == "svg"]
    assert any("6 by 6 columns" in label for label in labels)
    assert any("among 4 variables" in label for label in labels)
    assert set(COLUMNS) <= set(page.labels)


def test_tables_are_read_by_the_dictionary_for_their_scales(runs: dict[str, Path], tmp_path: Path) -> None:
    levels = {name: list(entry.levels) for name, entry in WARD.items()}
    for k, X in enumerate(CODES.values(), start=1):
        cells = [
            [
                "" if math.isnan(x) else levels[name][int(x)] if levels[name] else repr(x)
                for name, x in zip(WARD.variables, row, strict=True)
            ]
            for row in X.tolist()
        ]
        with (tmp_path / f"site-{k}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([WARD.variables, *cells])
    page = Page(write_report(runs["standard"], data=tmp_path, out=tmp_path / "page.html").read_text(encoding="utf-8"))
    shown = {row[0]: [float(x) for x in row[1:]] for row in page.tables["scales"][1:]}
    rows = np.concatenate([columns_of(X) for X in CODES.values()])
    for column, mean, deviation in zip(COLUMNS, rows.mean(axis=0), rows.std(axis=0), strict=True):
        assert shown[column] == [pytest.approx(mean, rel=1e-3), pytest.approx(deviation, rel=1e-3)]
    assert "which was taken off" in page.text


# ---- the terminal --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "standard",
            "own means taken off at each site, columns divided by pooled standard deviations; rows used 3,600 of 3,600",
        ),
        (
            "private",
            "own noisy means taken off at each site, columns divided by noisy pooled standard deviations; rows used "
            "are known at the sites alone",
        ),
        ("raw", "nothing taken off, columns not scaled; rows used {} of 3,600"),
    ],
)
def test_the_summary_says_in_one_line_how_columns_were_prepared(name: str, said: str, runs: dict[str, Path]) -> None:
    text, result = io.StringIO(), result_of(runs[name])
    print_summary(result, runs[name], Console(file=text, width=250), no_hidden_causes=True, seconds=1.0)
    flat = " ".join(text.getvalue().split())
    assert f"prepared {said.format(f'{sum(COMPLETE.values()):,}')}" in flat
    assert ("without" in flat and "units" in flat) == (name != "raw"), "on two lines of the head"
    assert "(largest of 3)" in flat
    if name != "raw":
        assert f"{result['edges'][0]['standardised']:+.3f}" in flat


def test_the_summary_counts_only_known_coefficients_where_it_names_the_largest(runs: dict[str, Path]) -> None:
    result, text = result_of(runs["standard"]), io.StringIO()
    (edge,) = (edge for edge in result["edges"] if len(edge.get("coefficients", ())) == 3)
    smallest = min(edge["coefficients"], key=lambda one: abs(one["weight"]))
    smallest["interval"] = None

    print_summary(result, runs["standard"], Console(file=text, width=250), seconds=1.0)

    assert "(largest of 2 known)" in text.getvalue()


# ---- scores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [None, 0.1])
def test_a_run_with_blocks_is_scored_against_a_truth_between_variables(
    tau: float | None, runs: dict[str, Path]
) -> None:
    scores = evaluate(runs["refitted"], runs["refitted"].parent / "truth.csv", tau=tau)["scores"]
    assert (scores["n_reference_edges"], scores["skeleton_hits"]) == (2, 2)


def test_a_threshold_cuts_weights_without_units_as_the_run_does(runs: dict[str, Path]) -> None:
    run = runs["refitted"]
    scales = np.array([result_of(run)["preparation"]["scales"][name] for name in COLUMNS])
    with (run / "weights.csv").open(encoding="utf-8", newline="") as file:
        W = np.array([[float(x) for x in row[1:]] for row in list(csv.reader(file))[1:]])
    strength = np.abs(W * scales[:, None] / scales)
    owner = np.array([0, 1, 2, 2, 2, 3])
    largest = np.array([[strength[owner == v][:, owner == w].max() for w in range(4)] for v in range(4)])
    np.fill_diagonal(largest, 0.0)
    for tau in (0.01, 0.1, 0.3, 0.6, 1.0):
        cut = largest > tau
        if not (cut & cut.T).any():
            found = evaluate(run, run.parent / "truth.csv", tau=tau)["scores"]["n_edges"]
            assert found == cut.sum()


# ---- the notebook --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted() -> FedSparseBNSL:
    plan = Plan.load("standard").with_dictionary(WARD, origin="the test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FedSparseBNSL(plan=plan).fit(FRAMES)


class Frame:
    """What the notebook class needs of a data frame, with words for levels."""

    def __init__(self, X: Matrix) -> None:
        self.columns = list(WARD.variables)
        self._X = X

    def __getitem__(self, name: str) -> Any:
        levels = WARD[name].levels
        column = self._X[:, self.columns.index(name)]
        if not levels:
            return column
        return np.array([None if math.isnan(x) else levels[int(x)] for x in column.tolist()], dtype=object)


FRAMES = {site: Frame(X) for site, X in CODES.items()}


def test_arrays_of_the_notebook_class_are_over_columns_and_graphs_over_variables(
    fitted: FedSparseBNSL, runs: dict[str, Path]
) -> None:
    model: Any = fitted
    assert list(model.columns_) == list(COLUMNS)
    assert list(model.feature_names_in_) == list(model.graph_.nodes) == list(WARD.variables)
    assert model.n_features_in_ == 4
    assert model.weights_.shape == model.raw_weights_.shape == (6, 6)
    assert model.residual_variance_.shape == (6,)
    result = result_of(runs["standard"])
    assert model.edges_ == [(edge["source"], edge["target"], edge["weight"]) for edge in result["edges"]]
    pairs = [one for edge in result["edges"] for one in edge.get("coefficients", [edge])]
    for one in pairs:
        assert model.weights_[COLUMNS.index(one["source"]), COLUMNS.index(one["target"])] == one["weight"]
    assert np.count_nonzero(model.weights_) == len(pairs)


def test_the_score_of_the_notebook_class_is_the_loss_of_prepared_columns(fitted: FedSparseBNSL) -> None:
    model: Any = fitted
    scales = np.array(list(model.result_["preparation"]["scales"].values()))
    losses: list[float] = []
    for X in map(columns_of, CODES.values()):
        Z = (X - X.mean(axis=0)) / scales
        losses.append(float(((Z - Z @ (model.weights_ * scales[:, None] / scales)) ** 2).sum() / (2 * len(Z))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert model.score(FRAMES) == pytest.approx(-np.mean(losses), rel=1e-9)


def test_personalised_weights_of_the_notebook_class_are_between_columns(fitted: FedSparseBNSL) -> None:
    model: Any = fitted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = model.personalised(Frame(CODES["north"][~np.isnan(CODES["north"]).any(axis=1)]))
    assert own.variables == COLUMNS
    X = columns_of(CODES["north"])
    X = X - X.mean(axis=0)
    for j in np.flatnonzero(own.dag.any(axis=0)).tolist():
        parents = np.flatnonzero(own.dag[:, j])
        expected = np.linalg.lstsq(X[:, parents], X[:, j], rcond=None)[0]
        np.testing.assert_allclose(own.weights[parents, j], expected, rtol=1e-8)
    assert own.dag[2:5, 5].all()


@pytest.mark.parametrize("name", ["standard", "private"])
def test_effects_without_units_are_those_that_the_command_tells(
    name: str, runs: dict[str, Path], pages: dict[str, Page], capsys: pytest.CaptureFixture[str]
) -> None:
    """A private run's scales are noisy: an effect in these would be another."""
    (shown,) = (row for row in pages[name].rows("effects") if (row["from"], row["to"]) == ("age", "crp"))
    outcome = run_command(capsys, "effect", runs[name], "--from", "age", "--to", "crp", "--json")
    (told,) = json.loads(outcome.out)["effects"]
    values = [one["standardised"] for one in told["values"]]
    first = shown["without units"].replace("\u00a0", " ").split(" ")[0]
    assert float(first) == pytest.approx(min(values), abs=6e-4)


# ---- in a browser --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_all_coefficients_and_never_scrolls_the_page_sideways(
    width: int, runs: dict[str, Path], pages: dict[str, Page], browser: Browser
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((runs["standard"] / "report.html").as_uri())
    folded = page.locator("#edges tr.coefficients li")
    assert folded.count() % 3 == 0
    assert not folded.first.is_visible()
    page.locator("#edges tr.coefficients summary").first.click()
    assert folded.first.is_visible()
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    assert page.locator("#prepared-variables").is_visible()
