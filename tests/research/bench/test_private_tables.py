"""The figures of private runs on published tables: counted on paper, and from a small table."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import ResultError
from fedbnsl_research.bench import private_tables as bench


def result(*edges: tuple[str, str, float, list[float] | None]) -> dict[str, Any]:
    """All directed by the data."""
    named = [
        {"source": s, "target": t, "weight": w, "interval": i, "directed": True, "directed_by": "data"}
        for s, t, w, i in edges
    ]
    return {"variables": list("abcd"), "edges": named}


def test_the_cells_of_a_budget_are_what_one_counts_on_paper() -> None:
    standard = result(("a", "b", 1.0, None), ("b", "c", 2.0, None))
    one = result(("a", "b", 1.1, [0.9, 1.3]), ("c", "b", 0.5, [0.1, 9.0]))  # the other way: not counted
    other = result(("b", "c", 3.0, [2.5, 3.5]), ("a", "d", 1.0, [0.0, 2.0]))
    row = bench.compared([one, other], standard, "5")
    assert list(row.values()) == ["1 2", "2/0 2/1", "1 of 2"]


def test_a_table_is_split_described_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=600)
    lines = [f"{a:.4f},{b:.4f},{c:.4f}" for a, b, c in zip(x, x + 0.5 * rng.normal(size=600), -x, strict=True)]
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "small.csv").write_text("\n".join(["x,y,z", *lines[:300]]), encoding="utf-8")
    (tmp_path / "real" / "tiny.csv").write_text("\n".join(["x,y,z", *lines[:30]]), encoding="utf-8")
    monkeypatch.setenv("FEDBNSL_DATA", str(tmp_path))
    monkeypatch.setattr(bench, "EPSILONS", (50.0,))
    small, tiny = bench.private_tables()
    assert small["figure"] == "small, 3 variables, noise of 2 seeds"
    assert len(small["class distance, epsilon 50"].split()) == 2
    assert "tables cannot be used" in tiny["no run"]  # ten rows a site


def test_without_tables_the_figure_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBNSL_DATA", str(tmp_path))
    with pytest.raises(ResultError, match="published tables are needed"):
        next(bench.private_tables())


@pytest.mark.parametrize(("values", "ends"), [((0.075, 0.815), (0.07, 0.9)), ((-3.2, 0.0), (-4.0, 0.0))])
def test_a_range_is_one_digit_outwards(tmp_path: Path, values: tuple[float, float], ends: tuple[float, float]) -> None:
    from fedbnsl.plan.dictionary import Dictionary

    table = tmp_path / "t.csv"
    table.write_text(f"x,y\n{values[0]},1\n{values[1]},2\n", encoding="utf-8")
    described = bench._with_ranges(Dictionary.model_validate({"x": {}, "y": {}}), table)
    assert described["x"].range == pytest.approx(ends)
