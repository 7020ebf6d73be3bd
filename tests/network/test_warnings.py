"""What is odd about the sites' tables, over the network: told without privacy, and never told with it."""

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.join_run import Told, take_part
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable
from fedbnsl_client.site.identity import Link
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.simulate import simulate
from forked import forked_run
from network.test_private_run import SITES, Wire, coordinate, join, wire
from private_site import NAMES, make_site, private_plan, rows, write_table

__all__ = ["wire"]  # a fixture

MOMENTS = private_plan(variables=NAMES, rounds=0, moments_rounds=2, privacy={"epsilon": 4.0, "feature_bounds": [900.0]})


def write_tables(folder: Path, *offsets: tuple[float, float, float], n: int = 120) -> dict[str, Path]:
    return {
        name: write_table(folder / name / "table.csv", rows(k, n=n) + np.array(offset))
        for k, (name, offset) in enumerate(zip(SITES, offsets, strict=True), start=1)
    }


def make_sites(tables: dict[str, Path], plan: Plan) -> None:
    for name, path in tables.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            make_site(path.parent, table=path, site=name)
        with site_folder.opened(path.parent) as (_, ledger):
            ledger.approvals.approve(plan.digest(), plan.name)


def findings(result: dict[str, Any]) -> list[Any]:
    return [entry.get("findings") for entry in result["rounds"]]


def test_processes_and_one_process_warn_alike_of_what_is_odd_about_the_tables(tmp_path: Path) -> None:
    tables = write_tables(tmp_path / "data", (0.0, 9.0, 0.0), (9.0, 9.0, 0.0))
    lines = tables["south"].read_text(encoding="utf-8").splitlines()
    coded = [line.rpartition(",")[0] + f",{k % 3 - 1}" for k, line in enumerate(lines[1:])]
    tables["south"].write_text("\n".join([lines[0], *coded]) + "\n", encoding="utf-8")
    north = tables["north"].read_text(encoding="utf-8").splitlines()
    north[5] = north[5].rpartition(",")[0] + ",999"
    tables["north"].write_text("\n".join(north) + "\n", encoding="utf-8")
    plan = Plan(n_participants=2, rounds=3)
    forked_run(plan, tables, tmp_path / "network", seeds={})
    with pytest.warns(DataWarning):
        datasets = {site: Dataset.read(path) for site, path in tables.items()}
    alone = simulate(plan, datasets, tmp_path / "alone")
    network = json.loads((tmp_path / "network" / "result.json").read_text(encoding="utf-8"))
    assert network["warnings"] == alone["warnings"]
    assert findings(network) == findings(alone)
    assert findings(alone)[1:] == [None] * 3, "once is enough"
    assert findings(alone)[0] == [
        {"code": "means_far_from_zero", "variables": ["dose"], "site": "north"},
        {"code": "looks_like_a_code", "variables": ["mass"], "site": "north"},
        {"code": "means_far_from_zero", "variables": ["age", "dose"], "site": "south"},
        {"code": "looks_categorical", "variables": ["mass"], "site": "south"},
    ]
    said = " ".join(network["warnings"])
    assert "means of 'dose', 'age' further from zero than the standard deviation (at north, south)" in said
    assert "few whole values of 'mass' look like categories (at south)" in said
    assert "numbers of 'mass' look like a code of a missing value, such as 999 (at north)" in said
    page = write_report(tmp_path / "network").read_text(encoding="utf-8")
    assert "further from zero than the standard deviation (at north, south)" in page


def test_a_private_run_never_sends_what_is_odd_but_tells_it_to_the_site(wire: Wire, tmp_path: Path) -> None:
    plan = private_plan(variables=NAMES)
    tables = write_tables(tmp_path, (0.0, 9.0, 0.0), (0.0, 9.0, 0.0))
    said: list[str] = []

    def act(address: str) -> None:
        processes = [join(path.parent, address) for path in tables.values()]
        said.extend(process.communicate() for process in processes)

    make_sites(tables, plan)
    result, error = coordinate(plan, tmp_path / "run", wire, act)
    assert error is None, said
    assert result is not None
    assert result["warnings"] == []
    updates = [message for message in wire.everything if message.DESCRIPTOR.name == "Update"]
    assert len(updates) >= 2 * plan.rounds
    assert not any(update.finding for update in updates)
    for text in said:
        assert "about this table, told here alone: column(s) 'dose': means further from zero" in text
        assert "of the records lie beyond feature_bounds (a bound on x^2, not on x): 'dose' 100.00%" in text


@pytest.mark.parametrize("offset", [0.0, 20.0])
def test_the_released_moments_of_a_private_run_warn_of_tables_far_from_centred(
    offset: float, wire: Wire, tmp_path: Path
) -> None:
    tables = write_tables(tmp_path, *[(offset, offset, -offset)] * 2, n=2000)
    told: list[tuple[str, int]] = []

    def live(folder: Path, address: str) -> None:
        with site_folder.opened(folder) as (policy, ledger):

            def notice(text: str) -> None:
                told.append((text, sum(entry.kind == "reserve" for entry in ledger.entries())))

            take_part(GuardedTable(folder, policy, ledger, None), Link(address), patience_s=40.0, told=Told(notice))

    def act(address: str) -> None:
        with ThreadPoolExecutor(2) as sites:
            list(sites.map(live, (path.parent for path in tables.values()), [address] * 2))

    make_sites(tables, MOMENTS)
    result, error = coordinate(MOMENTS, tmp_path / "run", wire, act)
    assert error is None
    assert result is not None
    far = [warning for warning in result["warnings"] if "means may lie far from zero" in warning]
    assert len(far) == (1 if offset else 0), result["warnings"]
    assert result["manifest"]["private"] is True
    own = [(text, reserved) for text, reserved in told if "told here alone" in text]
    assert any("means further from zero" in text for text, _ in own) == bool(offset)
    assert len(own) >= 2
    assert {reserved for _, reserved in own} == {0}, "before the first reservation"
    assert not any(getattr(message, "finding", ()) for message in wire.everything)
