"""A ledger of one table, as the tests of ledgers fill it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.spending import Cap

RUN = 2**64 - 1  # as large as a run's number can be
NAMES = ("age", "dose", "weight")
TABLE = np.random.default_rng(7).normal(size=(30, 3))
OTHER = TABLE + 1.0
RECIPE = {"T": 10, "K": 3, "C": 0.1 + 0.2, "bounds": [1.0, 2.5], "version": "0.2"}


def request(round_: int, *, run: int = RUN, dataset: str = "a", site: str = "north") -> Request:
    return Request(dataset, run, round_, site)


def reserve(ledger: Ledger, asked: Request, units: int = 10, cap_units: int = 1000) -> None:
    ledger.payments.reserve(asked, Payment(units, RECIPE), Cap(cap_units, 0))


def answer(ledger: Ledger, round_: int, payload: bytes) -> None:
    reserve(ledger, request(round_))
    ledger.payments.store(request(round_), payload)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.create(path) as made:
        made.registrations.register("a", NAMES, TABLE)
        yield made


@pytest.fixture
def filled(path: Path) -> Path:
    """A closed ledger: 1 register, then reserve and store for rounds 1 to 4."""
    with Ledger.create(path) as ledger:
        ledger.registrations.register("a", NAMES, TABLE)
        for round_ in range(1, 5):
            answer(ledger, round_, b"answer %d" % round_)
    return path
