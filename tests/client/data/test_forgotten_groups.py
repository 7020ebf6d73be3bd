"""A column that tells patients apart, and that the dictionary forgot, is asked about at the site, and nowhere else."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from command_line import Outcome
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.frames import table_over
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import split

ASKED = "do several rows belong to one patient?"
DICTIONARY = Dictionary.from_plain({"x": {"range": [-20, 50]}, "y": {"range": [-20, 20]}}, origin="test")


def write(path: Path, *, alike: float = 1.0, name: str = "patient_id", patients: int = 40, visits: int = 4) -> Path:
    """Visits of patients in turn, whose variables differ between patients by a deviation of `alike`."""
    rng = np.random.default_rng(0)
    level = alike * rng.standard_normal((patients, 2))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([name, "x", "y"])
        for t in range(visits):
            for p in range(patients):
                writer.writerow([f"P{p}", *(level[p] + rng.standard_normal(2)).tolist()] if t or p else ["P0", "", 1.5])
    return path


def asked(path: Path, dictionary: Dictionary = DICTIONARY) -> list[str]:
    return [text for text in Dataset.read(path, dictionary=dictionary, warn=False).remarks() if ASKED in text]


def test_an_identifier_with_repeated_values_whose_rows_are_alike_is_asked_about(tmp_path: Path) -> None:
    (text,) = asked(write(tmp_path / "t.csv"))
    assert text.startswith("column 'patient_id': 40 values in 160 rows, and rows with the same one are alike: do")
    (of_columns,) = Dataset.read(tmp_path / "t.csv", columns=["x", "y"], warn=False).remarks()[1:]
    assert of_columns == text


def test_rows_are_alike_in_what_stays_the_same_all_along(tmp_path: Path) -> None:
    frame = pd.read_csv(write(tmp_path / "t.csv", alike=0.0))
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert not asked(tmp_path / "t.csv")
    frame["x"], frame["y"] = frame["patient_id"].str[1:].astype(float), np.arange(160) % 7
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert len(asked(tmp_path / "t.csv")) == 1


def test_nothing_is_asked_of_other_columns(tmp_path: Path) -> None:
    assert not asked(write(tmp_path / "one-row.csv", visits=1))
    assert not asked(write(tmp_path / "few.csv", patients=10))
    assert not asked(write(tmp_path / "other.csv", name="ward"))
    described = {"patient_id": {"kind": "group"}, **DICTIONARY.model_dump(exclude_unset=True)}
    assert not asked(write(tmp_path / "group.csv"), Dictionary.from_plain(described, origin="test"))


def test_rows_that_are_alike_by_chance_are_hardly_ever_asked_about(tmp_path: Path) -> None:
    n_asked = 0
    for seed in range(60):
        rng, path = np.random.default_rng(seed), tmp_path / "t.csv"
        frame = pd.DataFrame(rng.standard_normal((90, 2)), columns=["x", "y"])
        frame.assign(id=rng.integers(30, size=90)).to_csv(path, index=False)
        n_asked += len(asked(path))
    assert n_asked <= 3  # 0.6 expected


def test_a_data_frame_is_asked_about_like_a_file(tmp_path: Path) -> None:
    frame = pd.read_csv(write(tmp_path / "t.csv"))
    told = [text for text in table_over(frame, ["x", "y"], DICTIONARY).remarks() if ASKED in text]
    assert told == asked(tmp_path / "t.csv")


def test_a_column_that_orders_one_series_hides_no_patients(tmp_path: Path) -> None:
    """Records are in the order of time there, so that only names and repeats are looked at."""
    frame = pd.read_csv(write(tmp_path / "t.csv")).assign(day=range(160))
    frame.to_csv(tmp_path / "t.csv", index=False)
    described = {"day": {"kind": "time"}, **DICTIONARY.model_dump(exclude_unset=True)}
    (text,) = asked(tmp_path / "t.csv", Dictionary.from_plain(described, origin="test"))
    assert "alike" not in text


def test_nothing_of_it_leaves_the_site(tmp_path: Path) -> None:
    table = Dataset.read(write(tmp_path / "t.csv"), dictionary=DICTIONARY, warn=False)
    assert any(ASKED in one.text and one.finding is None for one in table.odd)
    plan = Plan.load("standard").with_settings(n_participants=2, bootstrap=0, dictionary=DICTIONARY)
    simulate(plan, {"a": table, "b": table}, tmp_path / "run")
    left = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"patient_id" not in left


def test_split_asks_and_keeps_the_rows_of_a_group_at_one_site(tmp_path: Path, fedbnsl: Callable[..., Outcome]) -> None:
    path = write(tmp_path / "t.csv")
    path.write_text(path.read_text(encoding="utf-8").replace("P", ""), encoding="utf-8")
    with pytest.warns(UserWarning, match="--group COLUMN keeps the rows of a patient at one site"):
        assert split(path, 3, tmp_path / "rows", seed=0) == {"site-1": 54, "site-2": 53, "site-3": 53}
    told = fedbnsl("data", "split", path, "--group", "patient_id", "--out", tmp_path / "groups")
    assert (told.code, told.err) == (0, "")
    parts = [pd.read_csv(tmp_path / "groups" / f"site-{k}.csv") for k in (1, 2, 3)]
    patients = [set(part["patient_id"]) for part in parts]
    assert [len(part) for part in parts] == [56, 52, 52]
    assert [len(names) for names in patients] == [14, 13, 13]
    assert len(set.union(*patients)) == 40
    together = pd.concat(parts).sort_values(["patient_id", "y"], ignore_index=True)
    pd.testing.assert_frame_equal(together, pd.read_csv(path).sort_values(["patient_id", "y"], ignore_index=True))
    told = fedbnsl("data", "split", path, "--group", "ward", "--out", tmp_path / "none")
    assert "no column is called 'ward'" in told.err
