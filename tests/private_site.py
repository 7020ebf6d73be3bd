"""A site with policy, ledger and a small table, as the tests of the privacy features need it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.policy import Policy
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.new_site import NewSite

NAMES = ("age", "dose", "mass")
ROWS = 120
DATASET = "ward-7"


def private_plan(**settings: Any) -> Plan:
    """Three rounds of four steps; keyword arguments replace settings, `privacy` those of its table."""
    privacy = {"epsilon": 1.0, "delta": 1e-6, "clip": 2.0, "feature_bounds": [9.0], **settings.pop("privacy", {})}
    given = {"n_participants": 2, "local_solver": "dp-pgcd", "rounds": 3, "local_steps": 4, "refit_rounds": 0}
    return Plan.parse({**given, **settings, "privacy": privacy})


def rows(seed: int = 1, *, n: int = ROWS, d: int = len(NAMES)) -> Matrix:
    return np.random.default_rng(seed).standard_normal((n, d))


def write_table(path: Path, X: Matrix, names: Sequence[str] = NAMES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(names), *(",".join(map(repr, row)) for row in X.tolist())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def make_site(folder: Path, *, table: Path | None = None, **settings: Any) -> Policy:
    """The folder of a site whose policy allows epsilon 5 at delta 1e-6; the table lies in the folder."""
    table = table or write_table(folder / "table.csv", rows())
    given = {"site": "north", "dataset_id": DATASET, "max_epsilon": 5.0, "max_delta": 1e-6}
    return site_folder.create(folder, NewSite(data=table, **{**given, **settings}))


def units_spent(ledger: Ledger, dataset: str, run: int | None = None, *, against_all: bool = False) -> int:
    """Units that a ledger has counted for a dataset."""
    return ledger.payments.spending(dataset, run, against_all=against_all).units


def edit(file: Path, old: str, new: str) -> None:
    """Replace a text that is there once."""
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, (old, text)
    file.write_text(text.replace(old, new), encoding="utf-8")
