"""Nothing that hangs on a value of a guarded table decides whether its site takes part, or what it says at first.

Pairs of tables that differ in one record: the commands of the site end alike, the request to join is the same, and the
first answer is of the same kind.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from click.testing import CliRunner

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RoundTask
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.admm import Task
from fedbnsl_client.cli import participant
from fedbnsl_client.join_run import _request
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable
from private_site import NAMES, make_site, private_plan

pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")

ROWS, RUN = 120, 7
WORDS = Dictionary.model_validate(
    {
        "age": {"range": [0.0, 110.0]},
        "dose": {"kind": "count"},
        "mass": {"kind": "continuous", "transform": "log"},
        "sex": {"kind": "binary", "levels": ["f", "m"]},
    }
)


def numbers() -> list[list[str]]:
    return [[repr(float(x)) for x in row] for row in np.random.default_rng(3).standard_normal((ROWS, len(NAMES)))]


def described() -> list[list[str]]:
    draw = np.random.default_rng(4)
    return [
        [f"{draw.uniform(20, 90):.1f}", str(k % 7), f"{draw.uniform(40, 99):.1f}", "fm"[k % 2]] for k in range(ROWS)
    ]


def with_gaps(n: int) -> list[list[str]]:
    return [["", *row[1:]] if k < n else row for k, row in enumerate(numbers())]


def constant() -> list[list[str]]:
    return [[*row[:2], "1.0"] for row in numbers()]


def twins() -> list[list[str]]:
    return [[*row[:2], row[1]] for row in numbers()]


def empty() -> list[list[str]]:
    return [[""] * len(NAMES) for _ in range(ROWS)]


def last(table: list[list[str]], *record: str) -> list[list[str]]:
    return [*table[:-1], list(record)]


NUMBERS = {
    "20 or 19 complete rows": (with_gaps(100), last(with_gaps(100), "", "1.0", "1.0")),
    "a word": (numbers(), last(numbers(), "unknown", "1.0", "1.0")),
    "an infinite value": (numbers(), last(numbers(), "inf", "1.0", "1.0")),
    "a huge value": (numbers(), last(numbers(), "1e300", "1.0", "1.0")),
    "a record without a value": (numbers(), last(numbers(), "", "", "")),
    "a constant column": (constant(), last(constant(), "0.5", "0.5", "2.0")),
    "a tiny spread": (constant(), last(constant(), "0.5", "0.5", repr(1.0 + 1e-15))),
    "equal columns": (twins(), last(twins(), "0.5", "0.5", "2.0")),
    "no value in any row": (empty(), last(empty(), "0.5", "0.5", "2.0")),
}
DESCRIBED = {
    "an unknown level": ("44.0", "3", "70.0", "x"),
    "a broken count": ("44.0", "3.5", "70.0", "f"),
    "a count below 0": ("44.0", "-3", "70.0", "f"),
    "no logarithm": ("44.0", "3", "0.0", "f"),
    "an infinite count": ("44.0", "inf", "70.0", "f"),
    "a value beyond its range": ("444.0", "3", "70.0", "f"),
    "a word for a number": ("old", "3", "70.0", "f"),
}


def seen(folder: Path, table: list[list[str]], plan: Plan, dictionary: Dictionary | None) -> list[Any]:
    """How every step at the site ends, and what the coordinator is sent: all but noise."""
    folder.mkdir()
    names = NAMES if dictionary is None else tuple(dictionary.variables)
    (folder / "table.csv").write_text("\n".join(map(",".join, [names, *table])) + "\n", encoding="utf-8")
    words: dict[str, Any] = {}
    if dictionary is not None:
        (folder / "words.toml").write_text(
            tomli_w.dumps(dictionary.model_dump(exclude_defaults=True)), encoding="utf-8"
        )
        words["dictionary"] = folder / "words.toml"
    make_site(folder / "site", table=folder / "table.csv", **words)
    (folder / "plan.toml").write_text(plan.to_toml(), encoding="utf-8")
    found: list[Any] = []
    for command in (["register"], ["register", "--supersedes"]):
        found.append(CliRunner().invoke(participant, [command[0], str(folder / "site"), *command[1:]]).exit_code)
    approve = ["approve", str(folder / "plan.toml"), str(folder / "site"), "--yes"]
    found.append(CliRunner().invoke(participant, approve).exit_code)
    with site_folder.opened(folder / "site") as (policy, ledger):
        site = GuardedTable(folder / "site", policy, ledger, None)
        found.append(replace(_request(site, RUN), ledger=None))
        data, journal = site.admit(plan, RUN, site.variables)
        assert data.n_samples == ROWS
        part = Participant("north", data, plan, journal=journal, run=RUN, randbelow=randomness.seeded("x"))
        d = len(data.variables)
        answer = part.handle(RoundTask(1, Task(SparseMatrix.from_dense(np.zeros((d, d)))), False))
        found.append((answer.site, answer.round, answer.content.kind))
    return found


@pytest.mark.parametrize("pair", NUMBERS)
def test_one_record_of_numbers_decides_nothing(pair: str, tmp_path: Path) -> None:
    one, other = (seen(tmp_path / str(k), table, private_plan(), None) for k, table in enumerate(NUMBERS[pair]))
    assert one == other
    assert one[:3] == [0, 0, 0]


@pytest.mark.parametrize("record", DESCRIBED)
def test_one_record_of_described_variables_decides_nothing(record: str, tmp_path: Path) -> None:
    plan = private_plan(dictionary=WORDS.model_dump(), privacy={"feature_bounds": [1e5]})
    tables = described(), last(described(), *DESCRIBED[record])
    one, other = (seen(tmp_path / str(k), table, plan, WORDS) for k, table in enumerate(tables))
    assert one == other
    assert one[:3] == [0, 0, 0]
