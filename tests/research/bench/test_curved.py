"""The bench of curved effects, on one graph."""

import pytest

from fedbnsl.errors import ResultError
from fedbnsl_research.bench.curved import curved


def test_a_pattern_chooses_rows_by_their_name() -> None:
    (row,) = curved(["straight lines*8 x 100 rows, 15 variables"], seeds=[0])
    assert row["figure"] == "straight lines, normal noise; 8 x 100 rows, 15 variables"
    assert float(row["skeleton F1"]) > 0.9
    assert row["directions by noise, right"] == "0 of 0"  # which rows are too few to tell


def test_a_pattern_without_rows_is_refused_with_their_names() -> None:
    with pytest.raises(ResultError, match="no row is called cubes") as refused:
        next(curved(["cubes"]))
    assert "thresholds for 50% of the edges, normal noise" in str(refused.value.remedy)
