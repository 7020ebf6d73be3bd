"""The figure about ratios, on a few tables."""

import pytest

from fedbnsl_research.bench import regressions


def test_each_kind_of_child_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regressions, "_TABLES", 3)
    monkeypatch.setattr(regressions, "_ROWS", (200,))
    rows = list(regressions.regressions())
    assert [str(row["figure"]).split()[0] for row in rows] == ["binary", "nominal", "count"]
    assert all(float(str(row["95 % intervals that hold the truth"]).split()[0]) > 50 for row in rows)
