"""Data frames become the same codes as files, and what pandas says of its columns is not lost."""

import numpy as np
import pytest

from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl_client.data.frames import categories_of, table_over
from fedbnsl_workbench.estimator import FedSparseBNSL

pd = pytest.importorskip("pandas")

A = np.arange(30.0)


@pytest.mark.parametrize("cells", [[0, 1, True], [True, 1, 0]])
def test_true_and_1_keep_their_own_levels_in_one_column(cells):
    dictionary = Dictionary.from_plain(
        {"k": {"kind": "nominal", "levels": ["0", "1", "True"]}, "a": {"kind": "continuous"}}, origin="x"
    )
    table = pd.DataFrame({"k": pd.Series(cells * 10, dtype=object), "a": A})
    level = {"0": [0, 0], "1": [1, 0], "True": [0, 1]}
    expected = [level[str(cell)] for cell in cells]
    assert table_over(table, ["k", "a"], dictionary).X[:3, :2].tolist() == expected


@pytest.mark.parametrize("label", [None, float("nan")])
def test_a_column_without_a_name_is_refused(label):
    table = pd.DataFrame({"a": A, "b": A[::-1] ** 2})
    table.columns = pd.Index(["a", label], dtype=object)
    with pytest.raises(DataError, match="column 2 of 2 has no name"):
        table_over(table, ["a"])


def test_a_refused_frame_is_not_told_of_files():
    with pytest.raises(DataError) as caught:
        table_over(pd.DataFrame({"a": A * 1e30, "b": A}), ["a", "b"])
    assert "dictionary=..." in caught.value.remedy
    assert ".toml" not in caught.value.remedy


def test_a_constant_column_is_refused_with_the_line_that_leaves_it_out_under_the_traceback():
    with pytest.raises(DataError, match="column 'c': the same value in all 30 rows") as caught:
        table_over(pd.DataFrame({"a": A, "b": A[::-1] ** 2, "c": 1.0}), ["a", "b", "c"])
    assert caught.value.__notes__ == [caught.value.remedy]
    assert "frame.drop(columns=[...])" in caught.value.remedy


def frame(levels, ordered, seed):
    rng = np.random.default_rng(seed)
    stage = rng.integers(0, len(levels), 200)
    categories = pd.CategoricalDtype(levels, ordered=ordered)
    return pd.DataFrame(
        {"stage": pd.Series([levels[k] for k in stage], dtype=categories), "crp": stage + rng.standard_normal(200)}
    )


@pytest.mark.parametrize(
    ("levels", "ordered", "kind"),
    [(["I", "II", "III"], True, "ordinal"), (["x", "y", "z"], False, "nominal"), ([0, 1], False, "binary")],
)
@pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")
def test_a_category_brings_its_levels_and_needs_no_dictionary(levels, ordered, kind):
    tables = [frame(levels, ordered, seed) for seed in range(2)]
    entry = categories_of(tables)["stage"]
    assert (entry.kind, entry.levels) == (kind, tuple(map(str, levels)))
    model = FedSparseBNSL().fit(tables)
    assert model.plan_.dictionary == categories_of(tables)
    assert {frozenset(edge[:2]) for edge in model.edges_} == {frozenset({"stage", "crp"})}


def test_frames_without_categories_say_nothing_of_themselves():
    assert not categories_of([pd.DataFrame({"a": A, "b": A > 3})])
