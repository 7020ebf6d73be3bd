import csv
import html
import json
import re
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnsl.errors import ResultError
from fedbnsl.files.durable import write_text
from fedbnsl.graphs import formats as graph_formats
from fedbnsl.graphs.files import LearnedGraph, read_edges, write_all, write_weights
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.messages import is_variable_name

NAMES = (
    "a/b",
    "IL 6",
    "naïve β",
    'with "quotes"',
    "comma, here",
    "back\\slash",
    "NF-κB/p65",
    "ends with \\",
    'both \\" at once',
    'ends with both \\"',
    "two \\\\",
    "line\\nfeed",
    "AT&amp;T",
    "<b>bold</b>",
    "x -> y [beta=1]",
    "port:n",
    "node",
    "graph",
    "node_",
    "'single'; # ?",
    "=1+1",
    "'=1+1",
    "''@sum",
    "-x",
    "+x",
    "@x",
    "＝x",  # noqa: RUF001  # the wide sign
    "lonely",
)

# A table's column names: no control or bidirectional characters, which are refused, nor what XML forbids.
column_names = st.lists(
    st.text(min_size=1).filter(lambda name: name == name.strip() and is_variable_name(name)),
    min_size=2,
    max_size=6,
    unique=True,
)


def a_graph(names):
    """A complete DAG on all names but the last, in shuffled order, with weights of every magnitude."""
    rng = np.random.default_rng(7)
    d = len(names)
    rank = rng.permutation(d)
    dag = rank[:, None] < rank[None, :]
    dag[-1, :] = dag[:, -1] = False
    weights = rng.normal(size=(d, d)) * 10.0 ** rng.integers(-9, 9, size=(d, d))
    return LearnedGraph(tuple(names), dag, weights, rng.random(d))


def edges_of(graph):
    d = len(graph.variables)
    return {
        (graph.variables[i], graph.variables[j]): graph.weights[i, j]
        for i in range(d)
        for j in range(d)
        if graph.dag[i, j]
    }


# Readers, each after the description of its format: they return (names, {(source, target): weight}).


def from_edges_csv(text):
    rows = list(csv.DictReader(StringIO(text, newline="")))
    cells = [(row["source"], row["target"], float(row["weight"])) for row in rows]
    return None, {(without_mark(source), without_mark(target)): weight for source, target, weight in cells}


FORMULA = r"[=+\-@\uff1d\uff0b\uff0d\uff20]"


def without_mark(cell):
    """A spreadsheet must not find a formula; of the apostrophes that guard one, the first is not part of the name."""
    assert not re.match(FORMULA, cell)
    return re.sub(rf"^'('*\s*{FORMULA})", r"\1", cell)


def from_graphml(text):
    network = nx.read_graphml(StringIO(text))
    assert network.is_directed()
    for node, attributes in network.nodes(data=True):
        assert attributes == {"name": node, "label": node}
    return list(network), {(s, t): w for s, t, w in network.edges(data="weight")}


DOT_STRING = r'"(?:\\\\|\\"|[^"\\])*"'


def dot_string(token):
    """Graphviz's lexer turns an escaped quote into a quote and leaves a doubled backslash as it is."""
    return re.sub(r'\\([\\"])', lambda pair: '"' if pair[1] == '"' else pair[0], token[1:-1])


def from_dot(text):
    """Edges name ids; a label, which is what Graphviz draws, then resolves backslashes and HTML entities."""
    body = text[text.index("{") + 1 : text.rindex("}")]
    statement = re.compile(rf"\s*({DOT_STRING})(?: -> ({DOT_STRING}))? \[label=({DOT_STRING})(, style=dashed)?\];")
    label, edges, at = {}, {}, 0
    while match := statement.match(body, at):
        at = match.end()
        source, target, shown = (part and dot_string(part) for part in match.group(1, 2, 3))
        if target is None:
            label[source] = html.unescape(shown.replace("\\\\", "\\"))
        else:
            edges[label[source], label[target]] = float(shown)
            assert (match[4] is not None) == (float(shown) < 0)
    assert body[at:].strip() == ""
    return list(label.values()), edges


DAGITTY_STRING = r'"(?:[^"\\\x00-\x1f\x7f]|\\"|\\[\r\n]+|\\)*+"'


def dagitty_string(token):
    """The rules of `char` in DAGitty's grammar, in their order, without going back."""
    parts = re.findall(r'[^"\\\x00-\x1f\x7f]|\\"|\\[\r\n]+|\\', token[1:-1])
    return "".join('"' if part == '\\"' else "" if part[1:] else part for part in parts)


def from_dagitty(text):
    assert text.startswith("dag {\n")
    assert text.endswith("}\n")
    body = text[len("dag {") : -len("}\n")]
    quoted = f"({DAGITTY_STRING})"
    statement = re.compile(rf"\s*{quoted}(?: -> {quoted})?(?: \[(\w+)={quoted}\])?(?=\s)")
    label, edges, at = {}, {}, 0
    while match := statement.match(body, at):
        at = match.end()
        source, target, value = (part and dagitty_string(part) for part in match.group(1, 2, 4))
        assert source not in ("graph", "node")  # GraphParser.js refuses these
        if target is None:
            assert match[3] in (None, "label")
            label[source] = value or source
        else:
            assert match[3] == "beta"
            edges[label[source], label[target]] = float(value)
    assert body[at:].strip() == ""
    return list(label.values()), edges


def from_lgbn(text):
    """What pgmpy's LinearGaussianBayesianNetwork.load takes from the file."""
    data = json.loads(text)
    edges = {}
    for node, cpd in data["cpds"].items():
        assert set(cpd["coefficients"]) == {"(Intercept)", *cpd["parents"]}
        assert cpd["coefficients"]["(Intercept)"] == [0.0]
        (variance,) = cpd["variance"]
        assert float(np.sqrt(variance)) >= 0, "pgmpy takes the root of it"
        for parent in cpd["parents"]:
            (edges[parent, node],) = cpd["coefficients"][parent]
    assert {tuple(arc) for arc in data["arcs"]} == set(edges)
    assert list(data["cpds"]) == data["nodes"]
    return data["nodes"], edges


FORMATS = {
    "edges_csv": from_edges_csv,
    "graphml": from_graphml,
    "dagitty": from_dagitty,
    "lgbn_json": from_lgbn,
}


@pytest.mark.parametrize("form", FORMATS)
def test_every_name_edge_and_bit_of_a_weight_survives(form):
    graph = a_graph(NAMES)
    names, edges = FORMATS[form](getattr(graph_formats, form)(graph))
    assert edges == edges_of(graph)
    assert names is None or tuple(names) == NAMES


def test_dot_keeps_every_name_and_edge_and_three_digits_of_a_weight():
    graph = a_graph(NAMES)
    names, edges = from_dot(graph_formats.dot(graph))
    assert tuple(names) == NAMES
    assert edges == {edge: float(f"{weight:.2e}") for edge, weight in edges_of(graph).items()}


@given(column_names)
@pytest.mark.long
def test_any_column_names_survive_in_every_format(names):
    graph = a_graph(names)
    for form, read in (FORMATS | {"dot": from_dot}).items():
        read_names, edges = read(getattr(graph_formats, form)(graph))
        assert set(edges) == set(edges_of(graph)), form
        assert read_names is None or read_names == names, form


def test_graphml_dot_and_lgbn_say_what_a_variable_is_given_its_parents(tmp_path):
    dag = np.array([[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]], bool)
    columns = Columns.of(("w=x", "w=y", "a", "c"), {"w=x": "w", "w=y": "w", "a": "a", "c": "c"})
    families = {"w=x": "table", "w=y": "table", "c": "curved"}
    write_all(LearnedGraph(columns.names, dag, 0.5 * dag, np.ones(4), families=families), tmp_path, columns=columns)
    of_variables = {"w": "table", "a": "linear", "c": "curved"}
    assert dict(nx.read_graphml(tmp_path / "graph.graphml").nodes(data="family")) == of_variables
    text = (tmp_path / "graph.dot").read_text(encoding="utf-8")
    assert dict(re.findall(r'^  "(.)" \[label=".", family=(\w+)\];$', text, re.MULTILINE)) == of_variables
    network = json.loads((tmp_path / "lgbn.json").read_text(encoding="utf-8"))
    assert network["families"] == {**families, "a": "linear"}
    assert "family" not in (tmp_path / "dagitty.txt").read_text(encoding="utf-8"), "which has no place for it"


def test_weights_csv_has_a_row_for_each_source_and_a_column_for_each_target(tmp_path):
    W = a_graph(NAMES).weights
    write_weights(NAMES, W, tmp_path / "weights.csv")
    with (tmp_path / "weights.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header[0] == "source\\target"
    assert tuple(map(without_mark, header[1:])) == NAMES
    for i, row in enumerate(rows):
        assert without_mark(row[0]) == NAMES[i]
        for j, cell in enumerate(row[1:]):
            assert float(cell) == W[i, j]
    assert len(rows) == len(NAMES)


def test_every_file_says_which_end_of_an_edge_is_the_parent(tmp_path):
    dag = np.array([[0, 1], [0, 0]], bool)
    write_all(LearnedGraph(("p", "c"), dag, 0.5 * dag, np.ones(2)), tmp_path)
    text = {file.name: file.read_bytes().decode("utf-8") for file in tmp_path.iterdir()}
    assert set(text) == {"edges.csv", "graph.graphml", "graph.dot", "dagitty.txt", "lgbn.json"}
    header = "source,target,weight,directed,undecided,directed_by,adjacent,forward,backward"
    assert text["edges.csv"].startswith(f"{header},mark_source,mark_target,")
    assert text["edges.csv"].endswith("\np,c,0.5,1,0,,,,,,,,\n")
    assert '"p" -> "c"' in text["dagitty.txt"]
    said = "edge source -> target: source is the parent"
    assert text["graph.dot"].startswith(f"// {said}\n")
    assert said in json.loads(text["lgbn.json"])["orientation"]
    assert nx.read_graphml(tmp_path / "graph.graphml").graph["orientation"] == said


def test_edges_come_in_the_order_of_the_variables():
    dag = np.array([[0, 0, 0], [1, 0, 1], [1, 0, 0]], bool)
    graph = LearnedGraph(("c", "a", "b"), dag, dag * 1.0)
    assert graph_formats.edges_csv(graph).splitlines()[1:] == [
        f"{edge},1.0,1,0,,,,,,,," for edge in ("a,c", "a,b", "b,c")
    ]


def test_a_graph_without_edges_can_be_written_and_read(tmp_path):
    graph = LearnedGraph(("a", "b"), np.zeros((2, 2), bool), np.ones((2, 2)))
    write_all(graph, tmp_path)
    assert not read_edges(tmp_path / "edges.csv", ("a", "b")).dag.any()
    assert read_edges(tmp_path / "edges.csv").variables == ()
    assert ET.parse(tmp_path / "graph.graphml").getroot() is not None
    assert from_dagitty((tmp_path / "dagitty.txt").read_text(encoding="utf-8")) == (["a", "b"], {})


def test_lgbn_variances_are_those_of_the_graph_and_without_them_there_is_no_such_file(tmp_path):
    graph = a_graph(NAMES)
    cpds = json.loads(graph_formats.lgbn_json(graph))["cpds"]
    assert [cpds[name]["variance"] for name in NAMES] == [[v] for v in graph.residual_variance]
    unknown = LearnedGraph(graph.variables, graph.dag, graph.weights)
    write_all(unknown, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"edges.csv", "graph.graphml", "graph.dot", "dagitty.txt"}
    with pytest.raises(ValueError, match="needs residual variances"):
        graph_formats.lgbn_json(unknown)


def test_lgbn_json_is_read_alike_whatever_encoding_the_machine_assumes(tmp_path):
    write_all(a_graph(NAMES), tmp_path)
    path = tmp_path / "lgbn.json"
    assert json.loads(path.read_text(encoding="cp1252")) == json.loads(path.read_text(encoding="utf-8"))


def test_names_that_dagitty_reserves_become_labels_of_an_unused_id():
    text = graph_formats.dagitty(LearnedGraph(("node", "node_", "a"), np.zeros((3, 3), bool), np.zeros((3, 3))))
    assert text == 'dag {\n"node__" [label="node"]\n"node_"\n"a"\n}\n'


def test_read_edges_gives_back_what_was_written(tmp_path):
    graph = a_graph(NAMES)
    write_all(graph, tmp_path)
    back = read_edges(tmp_path / "edges.csv", NAMES)
    assert back.variables == NAMES
    assert np.array_equal(back.dag, graph.dag)
    assert np.array_equal(back.weights, np.where(graph.dag, graph.weights, 0.0))
    assert back.residual_variance is None


def test_undirected_edges_come_once_as_the_dag_has_them_and_every_file_says_that_they_are(tmp_path):
    """The DAG has x -> y, of which nothing tells the direction, and v -> w; y comes before x."""
    names = ("y", "x", "lonely", "v", "w")
    dag, marks = np.zeros((2, 5, 5), bool)
    dag[1, 0] = marks[1, 0] = marks[0, 1] = True
    dag[3, 4] = marks[3, 4] = True
    graph = LearnedGraph(names, dag, dag * 0.5, np.ones(5), marks=marks)
    write_all(graph, tmp_path)
    text = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert text["edges.csv"].splitlines()[1:] == ["x,y,0.5,0,0,,,,,,,,", "v,w,0.5,1,0,,,,,,,,"]
    assert text["dagitty.txt"].startswith("pdag {")
    assert '"x" -- "y" [beta="0.5"]' in text["dagitty.txt"]
    assert '"v" -> "w" [beta="0.5"]' in text["dagitty.txt"]
    assert '"x" -> "y" [label="0.5", dir=none];' in text["graph.dot"]
    assert '"v" -> "w" [label="0.5"];' in text["graph.dot"]
    network = nx.read_graphml(tmp_path / "graph.graphml")
    assert dict(network.edges) == {
        ("x", "y"): {"weight": 0.5, "directed": False, "undecided": False},
        ("v", "w"): {"weight": 0.5, "directed": True, "undecided": False},
    }
    one = json.loads(text["lgbn.json"])
    assert one["arcs"] == [["x", "y"], ["v", "w"]], "the DAG itself"
    assert "one DAG of the learned class" in one["directions"]
    back = read_edges(tmp_path / "edges.csv", names)
    assert np.array_equal(back.marks, marks)
    assert np.array_equal(back.dag, dag)
    assert np.array_equal(back.weights, 0.5 * dag)


def test_an_undecided_edge_has_no_direction_in_any_file_and_that_of_its_class_when_it_is_read(tmp_path):
    """p -> c <- q, of which the draws agree with p -> c alone."""
    names = ("p", "q", "c")
    dag, undecided = np.zeros((2, 3, 3), bool)
    dag[[0, 1], 2] = undecided[1, 2] = True
    shares = {("p", "c"): (1.0, 0.9, 0.1), ("q", "c"): (0.8, 0.5, 0.2)}
    by = {("p", "c"): "data"}
    graph = LearnedGraph(names, dag, dag * 0.5, marks=dag, undecided=undecided, shares=shares, directed_by=by)
    write_all(graph, tmp_path)
    text = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert text["edges.csv"].splitlines()[1:] == ["p,c,0.5,1,0,data,1.0,0.9,0.1,,,,", "q,c,0.5,0,1,,0.8,0.5,0.2,,,,"]
    assert '"q" -- "c"' in text["dagitty.txt"]
    assert '"q" -> "c" [label="0.5", dir=none];' in text["graph.dot"]
    assert nx.read_graphml(tmp_path / "graph.graphml").edges["q", "c"]["undecided"] is True
    back = read_edges(tmp_path / "edges.csv", names)
    assert np.array_equal(back.dag, dag)
    assert np.array_equal(back.undecided, undecided)
    assert np.array_equal(back.undirected, undecided)


def test_shares_are_read_by_r_in_the_columns_of_boot_strength():
    """Of 10 draws 8 have the edge: 5 as named, 2 the other way, 1 without a direction, which counts half for each."""
    header, there, back = graph_formats.strength_csv({("q", "c"): (0.8, 0.5, 0.2)}).splitlines()
    assert header == "from,to,strength,direction"
    assert there.split(",")[:3] == ["q", "c", "0.8"]
    assert back.split(",")[:3] == ["c", "q", "0.8"]
    assert [float(line.split(",")[3]) for line in (there, back)] == pytest.approx([5.5 / 8, 2.5 / 8])


def test_undirected_edges_are_read_as_they_are_named_unless_that_is_no_member_of_their_class(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("source,target,weight,directed\nc,b,2,0\nb,a,3,0\n", encoding="utf-8")
    assert edges_of(read_edges(path, ("a", "b", "c"))) == {("c", "b"): 2.0, ("b", "a"): 3.0}
    path.write_text("source,target,weight,directed\na,b,2,0\nc,b,3,0\n", encoding="utf-8")  # a v-structure
    assert read_edges(path, ("a", "b", "c")).dag[:, 1].sum() < 2


def test_a_graph_whose_edges_are_all_directed_says_nothing_of_a_class():
    assert "directions" not in json.loads(graph_formats.lgbn_json(a_graph(NAMES)))


def test_without_variables_names_come_in_order_of_first_appearance(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target,weight\nz,a,1\nm,z,-2e-3\n", encoding="utf-8")
    back = read_edges(tmp_path / "edges.csv")
    assert back.variables == ("z", "a", "m")
    assert edges_of(back) == {("z", "a"): 1.0, ("m", "z"): -0.002}


def test_a_name_that_looks_like_a_formula_may_stand_bare_in_a_file_written_by_hand(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target,weight\n=b,-a,1\n'=b,c,2\n'c,c,3\n", encoding="utf-8")
    assert edges_of(read_edges(tmp_path / "edges.csv")) == {("=b", "-a"): 1.0, ("=b", "c"): 2.0, ("'c", "c"): 3.0}


def test_a_file_that_a_spreadsheet_saved_is_read(tmp_path):
    (tmp_path / "edges.csv").write_bytes("\ufeffsource,target,weight\r\nβ,a,1\r\n\r\n".encode())
    assert edges_of(read_edges(tmp_path / "edges.csv")) == {("β", "a"): 1.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "",
            r"expected the header source,.*,target_level on the first line \(any from directed on may be .*\), got ''",
        ),
        ("a,b,1\n", "expected the header source,.*,target_level on the first line .*, got 'a,b,1'"),
        ("source,target,weight,directed\na,b,1,yes\n", "line 2: directed is 'yes'; expected 1, or 0 for an edge"),
        ("source,target,weight,directed,undecided\na,b,1,0,2\n", "line 2: undecided is '2'; expected 0 or 1"),
        ("source,target,weight,directed\na,b,1\n", r"expected 4 cells \(source,target,weight,directed\), got 3"),
        ("source,target,weight,directed\na,b,1,0\nb,a,1,1\n", "line 3: the edge 'b' -> 'a' is on line 2 already"),
        ("source,target,weight,directed\na,b,1,1\nb,a,1,0\n", "line 3: the edge 'b' -> 'a' is on line 2 already"),
        (
            "source,target,weight,directed\na,b,1,1\nb,c,1,0\nx,c,1,1\n",
            "no directed acyclic graph has these .*; give one of the undirected edges a direction, or remove it",
        ),
        ("source,target,weight,colour\na,b,1,red\n", "got 'source,target,weight,colour'"),
        ("source,target,weight,undecided,directed\na,b,1,0,1\n", "got 'source,target,weight,undecided,directed'"),
        ("target,source,weight\na,b,1\n", "got 'target,source,weight'"),
        ("source,target,weight\na,b,1\na,x,1\n", "line 3: 'x' is not one of the 3 variables"),
        ("source,target,weight\nx,a,1\n", "line 2: 'x' is not one of the 3 variables"),
        ("source,target,weight\nb,b,1\n", "line 2: the edge 'b' -> 'b'; no variable is its own parent"),
        ("source,target,weight\na,b,1\nb,c,1\nc,a,1\n", "cycle.*: 'a' -> 'b', 'b' -> 'c', 'c' -> 'a'$"),
        ("source,target,weight\na,b,1\nb,a,1\nb,c,1\n", "cycle.*: 'a' -> 'b', 'b' -> 'a'$"),
        ("source,target,weight\na,b,heavy\n", "line 2: the weight 'heavy' is not a finite number"),
        ("source,target,weight\na,b,nan\n", "line 2: the weight 'nan' is not a finite number"),
        ("source,target,weight\na,b,-inf\n", "line 2: the weight '-inf' is not a finite number"),
        ("source,target,weight\na,b,1\na,c,1\na,b,2\n", "line 4: the edge 'a' -> 'b' is on line 2 already"),
        ("source,target,weight\na,b\n", r"line 2: expected 3 cells \(source,target,weight\), got 2"),
        ("source,target,weight\na,b,1,2\n", "got 4"),
        ('source,target,weight\n"a,b,1\n', "not a CSV file"),
    ],
)
def test_a_file_that_is_no_graph_is_refused_with_the_reason(tmp_path, text, said):
    path = tmp_path / "edges.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultError, match=f"^{re.escape(str(path))}: .*{said}"):
        read_edges(path, ("a", "b", "c") if "no directed" not in said else ("a", "b", "c", "x"))


def test_a_cycle_is_refused_when_the_variables_are_those_of_the_file_too(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target,weight\na,b,1\nb,a,0\n", encoding="utf-8")
    with pytest.raises(ResultError, match="no cycle"):
        read_edges(tmp_path / "edges.csv")


def test_a_large_cyclic_part_is_named_by_its_first_edges(tmp_path):
    rows = "".join(f"v{k},v{(k + 1) % 20},1\n" for k in range(20))
    (tmp_path / "edges.csv").write_text("source,target,weight\n" + rows, encoding="utf-8")
    with pytest.raises(ResultError, match=r"'v7' -> 'v8' and 12 more$"):
        read_edges(tmp_path / "edges.csv")


def test_a_file_that_is_missing_or_not_utf_8_is_refused(tmp_path):
    with pytest.raises(ResultError, match=r"edges\.csv cannot be read: No such file"):
        read_edges(tmp_path / "edges.csv")
    (tmp_path / "edges.csv").write_bytes("source,target,weight\nnaïve,b,1\n".encode("latin-1"))
    with pytest.raises(ResultError, match=r"not UTF-8 text \(byte 23\)"):
        read_edges(tmp_path / "edges.csv")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "edges.csv"
    write_text(path, "old\n")

    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ResultError, match=r"edges\.csv cannot be written: No space left on device"):
        write_text(path, "new\n")
    assert [file.name for file in tmp_path.iterdir()] == ["edges.csv"]
    assert path.read_text(encoding="utf-8") == "old\n"


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ResultError, match="cannot be written: No such file"):
        write_all(a_graph(NAMES), tmp_path / "nowhere")


def test_files_of_marks_have_circles_where_too_few_draws_agree(tmp_path: Path) -> None:
    marks = np.array([[0, 2, 0], [3, 0, 2], [0, 3, 0]], dtype=np.int8)  # a --> b --> c
    shares = np.array([[1.0, 0.8, 1.0], [0.7, 1.0, 0.75], [1.0, 0.75, 1.0]])
    dag = np.triu(np.ones((3, 3), dtype=bool), 1) & (marks == 2)
    graph = LearnedGraph(("a", "b", "c"), dag, 0.5 * dag, np.ones(3), pag=marks, pag_shares=shares)
    write_all(graph, tmp_path)
    assert (tmp_path / "pag-dagitty.txt").read_text().count("@") == 2
    assert "b -> c" in (tmp_path / "pag-dagitty.txt").read_text().replace('"', "")
