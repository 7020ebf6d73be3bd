"""Workers read the table of a site with a policy: the same ledger, the same refusals, the same released bytes."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tomli_w

from command_line import Outcome
from dask_workers import (
    AS_WRITTEN,
    HERE,
    HERE_AS_WRITTEN,
    WARD,
    Workers,
    parquet,
    pyarrow,
    ward_table,
    workers,
    written,
)
from fedbnsl.errors import DataError, LedgerError, SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate, RoundTask
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data import dask_table
from fedbnsl_client.data.dask_table import Cluster, connected, read
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.fingerprint import recognised
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import private_moments
from fedbnsl_client.rounds import kinds
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable
from fedbnsl_workbench import simulate as simulation
from free_port import free_port
from private_site import DATASET, edit, make_site, private_plan, units_spent

# Of a site that reads its table here, and of one whose workers do: a person has seen them.
pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")

RUN = 2**63 + 7
KEY = bytes(range(32))
HOW: dict[str, Any] = {"dictionary": WARD, "mapping": HERE, "guarded": True}
SITES = ("east", "north")


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    with workers(2) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(two: Workers) -> Iterator[Cluster]:
    with connected(two.address) as found:
        yield found


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_table, "_PART_ROWS", 60)  # row groups of 40 rows: two make a part


def site(folder: Path, cluster: Cluster | None = None, *, seed: int = 5, **options: Any) -> Path:
    """The folder of a site whose table lies in it, registered here or by workers."""
    folder.mkdir(parents=True)
    described = {"dictionary": AS_WRITTEN, "column_map": HERE_AS_WRITTEN}
    for name, content in described.items():
        (folder.parent / f"{name}.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    table = ward_table(folder / "table", seed)
    files = {name: folder.parent / f"{name}.toml" for name in described}
    given = {"site": folder.name, "dataset_id": DATASET, "max_epsilon": 30.0, "max_delta": 1e-5, **files, **options}
    site_folder.create(folder, site_folder.NewSite(data=table, **given), cluster)
    edit(folder / "policy.toml", 'allowed_solvers = ["dp-pgcd"]', 'allowed_solvers = ["dp-pgcd", "pgcd"]')
    return folder


def plan_of(name: str, **settings: Any) -> Plan:
    plan = Plan.load(name, ["privacy.epsilon=5", "privacy.secure_aggregation=false"])
    return plan.with_settings(n_participants=2, dictionary=WARD, **settings)


# ---- registered ------------------------------------------------------------------------------------------------------


def test_workers_know_a_table_by_what_one_process_knows_it_by(cluster: Cluster, tmp_path: Path) -> None:
    path = ward_table(tmp_path / "ward")
    here, there = Dataset.read(path, warn=False, **HOW), read(cluster, path, **HOW)
    (tags, *known), (tags_there, *known_there) = (recognised(KEY, one.variables, one.X) for one in (here, there))
    assert tags_there.tobytes() == tags.tobytes()
    assert known_there == known
    assert len(set(known[1])) == len(here.variables)


def test_what_cannot_be_used_in_a_guarded_table_is_missing_for_workers_too(cluster: Cluster, tmp_path: Path) -> None:
    X = np.random.default_rng(3).normal(size=(390, 2))
    cells = [str(value) for value in X[:, 0]]
    cells[2] = cells[200] = "n/k"
    X[7, 1], X[300, 1] = 1e300, np.inf
    path = written(tmp_path / "odd", {"a": cells, "b": X[:, 1]})
    here, there = Dataset.read(path, warn=False, guarded=True), read(cluster, path, guarded=True)
    assert there.odd[:-1] == here.odd
    assert "3 row(s)" not in str(there.odd)
    assert "2 row(s) are not numbers" in there.odd[0].text
    assert there.gaps == here.gaps
    assert here.gaps.rows == 4
    assert recognised(KEY, "ab", there.X).fingerprint == recognised(KEY, "ab", here.X).fingerprint


@pytest.mark.parametrize("by_workers", [False, True], ids=["here", "by workers"])
def test_a_table_that_one_has_registered_the_other_admits(by_workers: bool, cluster: Cluster, tmp_path: Path) -> None:
    folder = site(tmp_path / "north", cluster if by_workers else None)
    plan = plan_of("private")
    with site_folder.opened(folder) as (policy, ledger):
        ledger.approvals.approve(plan.digest(), plan.name)
        for reader in (None, cluster):
            table = GuardedTable(folder, policy, ledger, None, cluster=reader)
            assert table.admit(plan, RUN, table.variables)[0].n_samples == 390
        before = len(ledger.entries())
        for reader in (None, cluster):
            site_folder.register(
                folder, policy, ledger, DATASET, site_folder.read_table(folder, policy, DATASET, cluster=reader)
            )
        assert len(ledger.entries()) == before, "the same table again changes nothing"


def test_workers_notice_another_table_and_one_that_another_dataset_holds(cluster: Cluster, tmp_path: Path) -> None:
    folder = site(tmp_path / "north", cluster)
    plan = plan_of("private")
    with site_folder.opened(folder) as (policy, ledger):
        ledger.approvals.approve(plan.digest(), plan.name)
        same = site_folder.read_table(folder, policy, DATASET, cluster=cluster)
        with pytest.raises(LedgerError, match="registered as 'ward-7'"):
            ledger.registrations.register("again", same.variables, same.X)
        ward_table(folder / "table", 6)
        table = GuardedTable(folder, policy, ledger, None, cluster=cluster)
        with pytest.raises(LedgerError, match="is not the one registered"):
            table.admit(plan, RUN, table.variables)
        assert units_spent(ledger, DATASET) == 0


def test_a_table_grows_by_what_workers_read_and_a_run_over_some_of_its_blocks_is_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = site(tmp_path / "north", cluster)
    new = parquet.read_table(folder / "table" / "0.parquet")
    new = new.set_column(0, "Alter", pyarrow.array(np.arange(len(new)) + 240))
    parquet.write_table(new.slice(0, 50), folder / "table" / "new.parquet")
    with site_folder.opened(folder) as (policy, ledger):
        table = site_folder.read_table(folder, policy, DATASET, cluster=cluster)
        site_folder.register(folder, policy, ledger, DATASET, table, grows=True)
        found = ledger.registrations.find(DATASET)
        assert found is not None
        assert [one.n_samples for one in found.blocks] == [390, 50]
        assert GuardedTable(folder, policy, ledger, None, blocks=[1, 2], cluster=cluster).n_samples == 440
        with pytest.raises(SetupError, match="--blocks 2 cannot be used with --engine") as caught:
            GuardedTable(folder, policy, ledger, None, blocks=[2], cluster=cluster)
        assert "Leave out --blocks" in caught.value.remedy


def test_a_plan_that_looks_at_rows_in_every_step_is_refused_and_pays_nothing(cluster: Cluster, tmp_path: Path) -> None:
    table = written(
        tmp_path / "north" / "table", dict(zip("abc", np.random.default_rng(1).normal(size=(3, 390)), strict=True))
    )
    make_site(tmp_path / "north", table=table)
    plan = private_plan()
    with site_folder.opened(tmp_path / "north") as (policy, ledger):
        ledger.approvals.approve(plan.digest(), plan.name)
        found = GuardedTable(tmp_path / "north", policy, ledger, None, cluster=cluster)
        with pytest.raises(DataError, match="dp-pgcd looks at all rows"):
            found.admit(plan, RUN, found.variables)
        assert units_spent(ledger, DATASET) == 0


def test_no_worker_logs_the_key(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ward_table(tmp_path / "ward")
    data = read(cluster, path, **HOW)
    (path / "1.parquet").unlink()
    with caplog.at_level(logging.DEBUG), pytest.raises(DataError, match="cannot read it"):
        recognised(b"k" * 32, data.variables, data.X)
    logs = str(cluster._client.get_worker_logs()) + str(cluster._client.get_scheduler_logs()) + caplog.text
    assert "Compute Failed" in logs, "they log what failed"
    assert "kkkk" not in logs
    called: list[Any] = []

    def each(_: object, f: Any) -> Iterator[Any]:
        called.append(f)
        return iter([f(np.ones((1, len(data.variables))))])

    monkeypatch.setattr(type(data.X), "each", each)
    recognised(b"k" * 32, data.variables, data.X)
    secrets = ("kkkk", *map(str, called[0].columns.seeds))
    assert not any(secret in repr(called[0]) for secret in secrets), "other versions of Dask log what was called"


# ---- in runs ---------------------------------------------------------------------------------------------------------


class Paid(NamedTuple):
    """Edges of a run, what its sites sent, and what their ledgers then hold."""

    edges: list[Any]
    sent: list[bytes]
    entries: dict[str, list[str]]
    units: dict[str, int]


def paid_run(
    folders: dict[str, Path],
    plan: Plan,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: Cluster | None,
) -> Paid:
    """A run whose sites pay for their releases."""
    opened = {name: site_folder.opened(folder) for name, folder in folders.items()}
    tables, journals, ledgers = {}, {}, {}
    sent: list[bytes] = []
    try:
        for name, folder in folders.items():
            policy, ledger = opened[name].__enter__()
            ledgers[name] = ledger
            ledger.approvals.approve(plan.digest(), plan.name)
            table = GuardedTable(folder, policy, ledger, None, cluster=cluster)
            tables[name], journals[name] = table.admit(plan, RUN, table.variables)

        class Paying(Participant):
            def __init__(self, site: str, dataset: Dataset, plan: Plan, **options: Any) -> None:
                super().__init__(site, dataset, plan, journal=journals[site], run=RUN, **options)

            def handle(self, task: RoundTask) -> LocalUpdate:
                update = super().handle(task)
                # A ledger's head is random.
                sent.append(codec.update_to_bytes(replace(update, ledger=None), run=0, value_type="float64"))
                return update

        monkeypatch.setattr(simulation, "Participant", Paying)
        monkeypatch.setattr(simulation, "attended", lambda play, **_: play())  # ledgers are of one thread
        result = simulation.simulate(plan, tables, out, noise_seed=1)
        entries: dict[str, list[str]] = {}
        for name, ledger in ledgers.items():
            ledger.verify()
            entries[name] = [one.kind for one in ledger.entries() if one.kind in ("reserve", "store")]
        spent = {name: units_spent(ledger, DATASET) for name, ledger in ledgers.items()}
    finally:
        for one in opened.values():
            one.__exit__(None, None, None)
    return Paid(result["edges"], sent, entries, spent)


@pytest.mark.parametrize("name", ["private", "private-moments"])
def test_a_paid_run_over_tables_that_workers_read_releases_the_same_bytes(
    name: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(name) if name == "private" else Plan.load(name).with_settings(n_participants=2)
    found = []
    for reader in (None, cluster):
        where = tmp_path / ("there" if reader else "here")
        if name == "private":
            folders = {one: site(where / one, reader, seed=k) for k, one in enumerate(SITES)}
        else:
            folders = {one: numbers_site(where / one, reader, k) for k, one in enumerate(SITES)}
        found.append(paid_run(folders, plan, where / "run", monkeypatch, reader))
    here, there = found
    assert there == here
    price = price_of(plan, n_samples=390, n_variables=5 if name == "private" else 4)
    assert here.units == dict.fromkeys(SITES, price.units)
    assert here.entries == dict.fromkeys(SITES, ["reserve", "store"] * (len(here.sent) // 2 + 1))
    assert len(set(here.sent)) == len(here.sent)


def numbers_site(folder: Path, cluster: Cluster | None, seed: int) -> Path:
    drawn = np.random.default_rng(seed)
    X: Matrix = drawn.standard_normal((390, 4)) @ (np.eye(4) + np.triu(drawn.uniform(size=(4, 4)), 1))
    table = written(folder / "table", dict(zip("abcd", X.T, strict=True)))
    given = {"site": folder.name, "dataset_id": DATASET, "max_epsilon": 30.0, "max_delta": 1e-5}
    site_folder.create(folder, site_folder.NewSite(data=table, **given), cluster)
    return folder


class Round:
    """The first release of a private run, over and over, at a site with a ledger."""

    def __init__(self, folder: Path, ledger: Any, policy: Any, cluster: Cluster | None) -> None:
        plan = plan_of("private")
        ledger.approvals.approve(plan.digest(), plan.name)
        self.table = GuardedTable(folder, policy, ledger, None, cluster=cluster)
        self.data, self.journal = self.table.admit(plan, RUN, self.table.variables)
        self.plan, self.ledger = plan, ledger
        self.price = price_of(plan, n_samples=390, n_variables=len(self.data.variables))

    def release(self) -> bytes:
        from fedbnsl_client.privacy import randomness

        mask = self.plan.edge_mask(self.data.variables)
        problem = kinds.LocalProblem(self.plan, self.data.X, mask, self.journal, randomness.seeded("one"))
        assert problem.setup is not None
        return problem.setup.tobytes()

    @property
    def entries(self) -> list[str]:
        return [one.kind for one in self.ledger.entries() if one.kind in ("reserve", "store")]


@pytest.mark.parametrize("killed", [1, 2])
def test_workers_that_are_killed_in_a_release_release_nothing_and_are_told_of(
    killed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_table, "_ALONE_S", 1.0)
    monkeypatch.setattr(dask_table, "_POLL_S", 0.2)
    drawn: list[int] = []
    genuine, drawing = dask_table.Cluster.each, private_moments.rounded_gaussian
    monkeypatch.setattr(private_moments, "rounded_gaussian", lambda *of: drawn.append(1) or drawing(*of))
    folder = site(tmp_path / "north")
    with site_folder.opened(folder) as (policy, ledger):
        expected = Round(folder, ledger, policy, None).release()
        ledger.payments.spending(DATASET)
    folder = site(tmp_path / "again" / "north")
    drawn.clear()
    with (
        workers(2) as two,
        connected(two.address) as cluster,
        site_folder.opened(folder) as (policy, ledger),
    ):
        first = Round(folder, ledger, policy, cluster)
        paid = first.price.units_of(0)

        def dying(cluster: Cluster, task: Any, parts: Any) -> Iterator[Any]:
            for k, result in enumerate(genuine(cluster, task, parts)):
                if k == 0:
                    two.kill(killed)
                yield result

        # No more wait at the cluster than are asked for, so that the dead have something left to do.
        monkeypatch.setattr(dask_table, "_WAITING_A_WORKER", 1)
        monkeypatch.setattr(dask_table.Cluster, "each", dying)
        if killed == 1:
            assert first.release() == expected, "the other one does its part"
            assert first.entries == ["reserve", "store"]
            assert units_spent(ledger, DATASET) == paid
            return
        with pytest.raises(DataError, match="has had no worker for 1 s") as caught:
            first.release()
        assert "reserved" in caught.value.remedy
        assert not drawn, "noise is drawn after the sums, at the site"
        assert first.entries == ["reserve"]
        assert units_spent(ledger, DATASET) == paid
        monkeypatch.setattr(dask_table.Cluster, "each", genuine)
        two.start(1)
        assert Round(folder, ledger, policy, cluster).release() == expected
        assert first.entries == ["reserve", "reserve", "store"]
        assert units_spent(ledger, DATASET) == 2 * paid
        ledger.verify()


# ---- commands --------------------------------------------------------------------------------------------------------


def test_the_commands_of_a_site_let_workers_read_its_table(
    fedbnsl: Callable[..., Outcome], two: Workers, tmp_path: Path
) -> None:
    """Up to the call of a coordinator that is not there."""
    table = written(tmp_path / "table", dict(zip("abc", np.random.default_rng(1).normal(size=(3, 390)), strict=True)))
    folder, engine = tmp_path / "site", ("--engine", two.address)
    made = fedbnsl("participant", "init", folder, "--site=a", "--data", table, f"--dataset={DATASET}", *engine)
    assert made.code == 0, made.err
    assert "Dask workers hold the rows" in made.err
    again = fedbnsl("participant", "register", folder, *engine)
    assert again.code == 0, again.err
    plan = ("private-moments", "--set", "n_participants=2", "--set", "privacy.epsilon=1")
    approved = fedbnsl("participant", "approve", *plan, folder, "--yes", *engine)
    assert approved.code == 0, approved.err
    some = fedbnsl("participant", "approve", *plan, folder, "--yes", "--blocks=7", *engine)
    assert some.code == 2
    join = ("participant", "join", f"127.0.0.1:{free_port()}", "--insecure", "--patience=0", *engine)
    outcome = fedbnsl(*join, "--policy", folder)
    assert outcome.code == 6, outcome.err
