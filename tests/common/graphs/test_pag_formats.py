"""The files of a partial ancestral graph, read as pcalg, Tetrad and DAGitty read them."""

import csv
import re
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.graphs.files import LearnedGraph, read_edges, write_all
from fedbnsl.graphs.pag import ARROW, CIRCLE, TAIL
from fedbnsl.graphs.pag_formats import PAG_FORMATS, dagitty_pag, pcalg_csv, read_pag, tetrad

NAMES = ("a", "IL 6", "IL_6", "graph", "=x", "lonely")
# By the marks at the first and the second: a --> IL 6, IL 6 o-> IL_6, graph <-> IL_6, graph o-o =x
EDGES = {(0, 1): (TAIL, ARROW), (1, 2): (CIRCLE, ARROW), (2, 3): (ARROW, ARROW), (3, 4): (CIRCLE, CIRCLE)}


def marks():
    found = np.zeros((6, 6), dtype=np.int8)
    for (i, j), (at_i, at_j) in EDGES.items():
        found[j, i], found[i, j] = at_i, at_j
    return found


def test_the_matrix_has_the_codes_of_pcalg_with_the_mark_at_the_column():
    (corner, *names), *rows = csv.reader(StringIO(pcalg_csv(NAMES, marks())))
    assert corner == "amat.pag"
    assert names == ["a", "IL 6", "IL_6", "graph", "'=x", "lonely"] == [row[0] for row in rows]
    of = {"none": 0, "circle": 1, "arrowhead": 2, "tail": 3}  # pcalg's manual, amatType
    assert rows[0][1:] == [str(of[k]) for k in ("none", "arrowhead", *["none"] * 4)]
    assert rows[1][1:] == [str(of[k]) for k in ("tail", "none", "arrowhead", *["none"] * 3)]
    assert rows[2][1:3] == ["0", str(of["circle"])]


def test_a_comma_in_a_name_comes_back_from_the_text_of_tetrad():
    names, of_names = ("sodium,serum", "sodium_serum", "x"), np.zeros((3, 3), dtype=np.int8)
    of_names[0, 2], of_names[2, 0] = ARROW, CIRCLE
    text = tetrad(names, of_names)
    assert "sodium_serum_ o-> x" in text
    read, found = read_pag(text, names)
    assert tuple(read) == names
    assert np.array_equal(found, of_names)


def test_causal_learn_reads_the_text_of_tetrad(tmp_path: Path):
    reader = pytest.importorskip("causallearn.utils.TXT2GeneralGraph")
    (tmp_path / "graph.txt").write_text(tetrad(NAMES, marks()), encoding="utf-8")
    graph = reader.txt2generalgraph(str(tmp_path / "graph.txt"))
    names = graph.get_node_names()
    assert names == ["a", "IL_6_", "IL_6", "graph", "=x", "lonely"], "a space is none, and no two are the same"
    sign = {"TAIL": TAIL, "ARROW": ARROW, "CIRCLE": CIRCLE}
    read = np.zeros((6, 6), dtype=np.int8)
    for edge in graph.get_graph_edges():
        i, j = names.index(edge.get_node1().get_name()), names.index(edge.get_node2().get_name())
        read[j, i], read[i, j] = sign[edge.get_endpoint1().name], sign[edge.get_endpoint2().name]
    assert np.array_equal(read, marks())


def test_dagitty_gets_a_pag():
    head, *lines, end, last = dagitty_pag(NAMES, marks()).split("\n")
    assert (head, end, last) == ("pag {", "}", "")
    assert lines[:6] == ['"a"', '"IL 6"', '"IL_6"', '"graph_" [label="graph"]', '"=x"', '"lonely"']
    # The edges of DAGitty's grammar: ->, <-, <->, --, @-@, @->, <-@, @-- and --@
    assert all(re.search(r"\" (->|<->|@-@|@->) \"", line) for line in lines[6:])
    edges = ['"a" -> "IL 6"', '"IL 6" @-> "IL_6"', '"IL_6" <-> "graph_"', '"graph_" @-@ "=x"']
    assert lines[6:] == edges


def test_an_edge_is_told_towards_its_arrowhead():
    marks = np.array([[0, TAIL], [ARROW, 0]], dtype=np.int8)
    assert "1. y --> x" in tetrad(("x", "y"), marks)
    assert '"y" -> "x"' in dagitty_pag(("x", "y"), marks)


@pytest.mark.parametrize("name", PAG_FORMATS)
def test_every_format_is_read_back(name):
    names = (*NAMES[:-1], 'a "b"; c\\')
    read, found = read_pag(PAG_FORMATS[name](names, marks()), names)
    assert tuple(read) == names
    assert np.array_equal(found, marks())


def test_files_of_others_are_read():
    said = "Graph Nodes:\na,b;c\n\nGraph Edges:\n1. a --> b dd nl\n2. c o-o b\n"
    assert read_pag(said, ())[1].tolist() == [[0, ARROW, 0], [TAIL, 0, CIRCLE], [0, CIRCLE, 0]]
    names, found = read_pag('pag{ c @-> "b [x]" [pos="0,1"]; b <-> c\n}', ())
    assert names == ["c", "b [x]", "b"]
    assert found.tolist() == [[0, ARROW, ARROW], [CIRCLE, 0, 0], [ARROW, 0, 0]]
    assert read_pag("source,target\na,b\n", ()) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("amat.pag,a,b\na,0,2\nb,0,0\n", "at one end alone"),
        ("amat.pag,a,b\na,0,7\nb,1,0\n", "expected 0, 1, 2 or 3"),
        ("amat.pag,a,b\nb,0,1\na,1,0\n", "one square"),
        ("Graph Nodes:\na;b\nGraph Edges:\n1. a --- b\n", "selection bias"),
        ("Graph Nodes:\na;b\nGraph Edges:\n1. a --> c\n", "not both among the nodes"),
        ("Graph Nodes:\na;b\nGraph Edges:\n1. a => b\n", "is no edge"),
        ("pag { a @-> b; b @-> a }", "two edges"),
        ("pag { a @-> }", "not between two variables"),
        ("pag { a ! b }", "is no edge and no variable"),
    ],
)
def test_a_damaged_file_of_marks_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_pag(text, ())


def test_edges_csv_has_the_marks_and_the_share_of_draws_and_they_do_not_stop_its_reader(tmp_path: Path):
    dag = np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]], bool)
    pag = np.array([[0, ARROW, 0], [CIRCLE, 0, ARROW], [0, TAIL, 0]], dtype=np.int8)
    shares = np.array([[1, 0.9, 0.8], [0.7, 1, 0.6], [0.8, 0.5, 1]])
    write_all(LearnedGraph(("a", "b", "c"), dag, 1.0 * dag, np.ones(3), pag=pag, pag_shares=shares), tmp_path)
    with (tmp_path / "edges.csv").open(encoding="utf-8") as file:
        rows = {(row["source"], row["target"]): row for row in csv.DictReader(file)}
    columns = ("mark_source", "mark_target", "mark_source_share", "mark_target_share")
    told = {ends: tuple(row[name] for name in columns) for ends, row in rows.items()}
    assert told["a", "b"] == ("circle", "arrow", "0.7", "0.9")
    assert told["b", "c"] == ("tail", "arrow", "0.5", "0.6")
    assert told["a", "c"] == ("none", "none", "0.8", "0.8"), "not linked if causes are hidden"
    assert np.array_equal(read_edges(tmp_path / "edges.csv").dag, dag)
    assert {"pag.csv", "pag-tetrad.txt", "pag-dagitty.txt"} < {file.name for file in tmp_path.iterdir()}


def test_files_of_edges_from_before_there_were_marks_are_read(tmp_path: Path):
    header = "source,target,weight,directed,undecided,adjacent,forward,backward,source_level,target_level"
    (tmp_path / "edges.csv").write_text(f"{header}\na,b,1,1,0,,,,low,\n", encoding="utf-8")
    assert read_edges(tmp_path / "edges.csv").dag.tolist() == [[False, True], [False, False]]
