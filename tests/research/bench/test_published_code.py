"""The figure `notears-admm`, on a small federation, with a stand-in for what is not installed here."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import SetupError
from fedbnsl_research.bench import published_code
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.tables.synthetic import SyntheticFederation, synthesise

STAND_IN = """#!{python}
import sys
import numpy as np
tables, found = sys.argv[-2:]
assert np.load(tables).shape == (2, 60, 5)
print("a line of theirs")
print(12.5)
np.save(found, np.load({truth!r}))
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_SIZES", (5,)), ("_N_SITES", 2), ("N_SAMPLES", 60)):
        monkeypatch.setattr(published_code, name, value)


def give(monkeypatch: pytest.MonkeyPatch, ours: Row) -> None:
    def known(federation: SyntheticFederation, folder: Path) -> Row:
        return ours

    monkeypatch.setattr(published_code, "_ours", known)


def test_ours_are_those_of_all_processes_and_a_part_of_them_once_all_have_joined() -> None:
    (row,) = published_code.notears_admm()
    assert row["notears-admm"] == "not measured"
    from_the_first_round, whole = row["cpu seconds from the first round on"], row["cpu seconds"]
    assert 0.0 < from_the_first_round < whole, "three processes load their libraries before"


def test_theirs_are_what_they_print_and_their_graph_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {"cpu seconds": 5.0, "cpu seconds from the first round on": 0.25}
    give(monkeypatch, ours)
    truth, python = tmp_path / "truth.npy", tmp_path / "python"
    graph = synthesise(5, 5, 2, 60, 2).W != 0
    np.save(truth, graph.T)
    python.write_text(STAND_IN.format(python=sys.executable, truth=str(truth)), encoding="utf-8")
    python.chmod(0o700)
    (row,) = published_code.notears_admm(python)
    assert row["cpu seconds, notears-admm"] == 12.5
    assert row["SHD, notears-admm"] == graph.sum(), "every edge is reversed"
    assert (row["theirs / ours from the first round on"], row["theirs / ours with all that is loaded"]) == (50, 2.5)


def test_a_python_that_lacks_their_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, {})
    with pytest.raises(SetupError, match=r"cannot run notears_admm: ModuleNotFoundError"):
        next(published_code.notears_admm(Path(sys.executable)))
