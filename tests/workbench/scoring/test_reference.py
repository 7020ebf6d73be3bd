"""The reading of reference graphs from files of edges."""

import numpy as np
import pytest

from fedbnsl.errors import ResultError
from fedbnsl_workbench.scoring.reference import read_full_reference


def edge_set(edges):
    return set(map(tuple, np.argwhere(edges).tolist()))


def written(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "truth.csv"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_names_are_read_to_the_letter(tmp_path, encoding, newline):
    variables = ["a, b", "p/q r", "größe 血", ' "quoted"', "A", "#cells"]
    lines = ["source,target", '"a, b",p/q r', 'größe 血," ""quoted"""', "", "A,größe 血", "#cells,A"]
    path = written(tmp_path, newline.join(lines), encoding)
    assert edge_set(read_full_reference(path, variables)) == {(0, 1), (2, 3), (4, 2), (5, 4)}


def test_comments_and_other_columns_are_ignored_and_zero_weights_are_no_edges(tmp_path):
    comments, rows = '#c,"a\n#a,c\n', "x,b,0.5,a\ny,c,0.0,a\nz,c,-1e-9,b\n,a,0,a\ntwice,c,1,b\n"
    text = f"# made by hand\nnote,target,weight,source\n{comments}{rows}"
    assert edge_set(read_full_reference(written(tmp_path, text), "abc")) == {(0, 1), (1, 2)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,target\na,x\nY,b\nx, a\n", "tables do not have: 'x', 'Y', ' a'"),
        ("source,target\na,b\n" + "".join(f"a,n{k}\n" for k in range(13)), "'n9' and 3 more"),
        ("source,target\na,x\n", "have 1 variable.s. in common"),
        ("a,b\nb,c\n", "lacks the header source,target; its first row is 'a,b'"),
        ("", "lacks the header source,target"),
        ("source,target\na,b\nc,c\n", "from a variable to itself: 'c'"),
        ("# comment\nsource,target\na\n", "line 3: expected a source and a target, got 'a'"),
        ("source,target,weight\na,b,nan\n", "line 2: expected a source, a target and a finite weight, got 'a,b,nan'"),
        ("source,target,weight\na,b,\n", "line 2: expected .* finite weight"),
        ('source,target\na,"b\nb,c\n', "no UTF-8 CSV file"),
    ],
)
def test_a_reference_that_cannot_be_meant_is_refused(tmp_path, text, message):
    with pytest.raises(ResultError, match=message):
        read_full_reference(written(tmp_path, text), "abc")


def test_a_reference_that_cannot_be_read_is_a_result_error(tmp_path):
    with pytest.raises(ResultError, match=r"missing\.csv cannot be read: No such file"):
        read_full_reference(tmp_path / "missing.csv", "ab")
    with pytest.raises(ResultError, match="no UTF-8 CSV file"):
        read_full_reference(written(tmp_path, "source,target\nä,b\n", "latin-1"), "äb")
