"""A whole run in one process: the same rounds and the same participants, over an in-process Exchange."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedbnsl.console.interrupt import Interruption
from fedbnsl.console.wording import first_few
from fedbnsl.errors import DataError, InterruptedRunError, SchemaMismatchError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LOADING, LocalUpdate, RoundTask, RunStatus, SiteProgress, SiteState
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.plan_fit import refuse_other_absent, rows_for
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.noise import Randbelow
from fedbnsl_client.solvers.local_solver import warm_up
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.results.results import RunRecorder
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.phases import ENDING, Phases
from fedbnsl_server.run.round_loop import RoundRecord, Searching
from fedbnsl_server.run.threads import at_once
from fedbnsl_server.search import graph_search, order_search
from fedbnsl_server.sites.mailbox import Traffic, UpdateCheck
from fedbnsl_server.sites.roster import check_rows, compare_variables
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_workbench.attended import attended


class InProcessExchange:
    """Participants as plain objects. Messages are encoded only to count their bytes, as they would cross the wire.

    Parameters
    ----------
    threads
        How many sites compute at the same time. Each has its own state and its own noise: results do not depend on it.

    Attributes
    ----------
    stopped
        Whether no round is played any more.
    """

    def __init__(self, plan: Plan, participants: Mapping[str, Participant], *, run: int, threads: int = 1) -> None:
        self.traffic, self.stopped = Traffic(), False
        self._plan = plan
        self._participants = participants
        self._run = run
        self._threads = threads

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        """See `fedbnsl_server.sites.mailbox.Exchange`."""
        if self.stopped:
            raise InterruptedRunError("the simulation was interrupted")
        value_type, dense = self._plan.value_type, self._plan.dense_messages
        updates: dict[str, LocalUpdate] = {}
        for (site, task), update in zip(tasks.items(), self._answers(tasks), strict=True):
            check(update)
            updates[site] = update
            down = codec.task_bytes(task, value_type=value_type, dense=dense)
            up = codec.update_bytes(update, run=self._run, value_type=value_type, dense=dense)
            self.traffic.down[site][task.round] += down
            self.traffic.up[site][task.round] += up
        return updates

    def _answers(self, tasks: Mapping[str, RoundTask]) -> Iterator[LocalUpdate]:
        """Updates in the order of the tasks. The first error in that order is raised; waiting sites do not start."""
        if self._threads == 1:
            yield from (self._participants[site].handle(task) for site, task in tasks.items())
            return
        with ThreadPoolExecutor(self._threads, thread_name_prefix="site") as pool:
            answers = [
                pool.submit(copy_context().run, self._participants[site].handle, task) for site, task in tasks.items()
            ]
            try:
                yield from (answer.result() for answer in answers)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # without error there is nothing to cancel


def simulate(
    plan: Plan,
    tables: Mapping[str, Dataset],
    out: Path,
    *,
    watch: Callable[[RunStatus], None] = lambda status: None,
    follow: Callable[[AdmmState], None] = lambda state: None,
    seeds: Mapping[str, int] | None = None,
    noise_seed: int | None = None,
    threads: int = 1,
    on_enough: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run a plan over the tables of all sites and return what result.json holds.

    A simulation guarantees nothing, whatever its plan says: one process holds all tables, and no ledger counts.

    Parameters
    ----------
    plan
        Its `n_participants` must be the number of tables; `variables`, if named, theirs.
    tables
        By site.
    out
        Run folder; must not hold a run yet.
    watch
        Told after each round where the run stands, and several times a second how far a search is.
    follow
        Given the coordinator's state after each round.
    noise_seed
        Makes the noise of a private plan reproducible; None: the operating system's entropy.
    threads
        How many sites compute at the same time; results do not depend on it.
    on_enough
        Told that the first Ctrl-C while a search goes on ends that search alone, with the best graph so far; None: it
        interrupts the run.

    Raises
    ------
    FedbnslError
        Whatever ended the run; the folder is readable all the same.
    """
    began, phases = time.monotonic(), Phases(n_rounds(plan))
    status = _status(plan, _nothing_yet(tables), Traffic(), 0.0)

    def load() -> None:
        warm_up()
        if plan.graph_class == "cpdag":
            order_search.warm_up()
        if plan.moments_rounds:
            graph_search.warm_up()

    def look(first: tuple[str, None] | None = None) -> None:
        now = time.monotonic()
        phase = phases.look(status.round + 1, now, first=first)
        if phase.is_work:
            watch(replace(status, elapsed_s=now - began, time_unix_s=time.time(), phase=phase))

    attended(load, look=partial(look, (LOADING, None)), goes_on=lambda: False)
    first, *others = tables.values()
    variables = plan.column_names or first.variables
    if nowhere := [name for name in first.absent if all(name in table.absent for table in others)]:
        raise DataError(
            f"no site has {first_few(map(repr, nowhere))}",
            remedy="Is it called so in the tables? Otherwise leave it out of the data dictionary, or of the plan's "
            "`variables`.",
        )
    used: dict[str, Dataset] = {}
    for site, table in tables.items():
        try:
            refuse_other_absent(plan, site, table.absent)
            used[site] = rows_for(table, plan)
        except DataError as error:
            raise DataError(f"{site}: {error}", remedy=error.remedy) from None
        check_rows(plan, site, table.n_samples)
        try:
            compare_variables(variables, table.variables)
        except SchemaMismatchError as error:
            raise SchemaMismatchError(f"{site}: {error}") from None
    n_samples = {site: table.n_samples for site, table in tables.items()}

    def randbelow(site: str) -> Randbelow:
        return randomness.system if noise_seed is None else randomness.seeded(f"{noise_seed}/{site}")

    participants = {
        site: Participant(site, table.reordered(variables), plan, randbelow=randbelow(site))
        for site, table in used.items()
    }
    run = secrets.randbits(64)
    noted = {**(seeds or {}), **({} if noise_seed is None else {"noise": noise_seed})}
    recorder = RunRecorder(RunFolder.create(out, plan), run=run, seeds=noted)
    exchange = InProcessExchange(plan, participants, run=run, threads=threads)

    began, recording = time.monotonic(), threading.Lock()

    def after_round(state: AdmmState, record: RoundRecord) -> None:
        nonlocal status
        with recording:
            if exchange.stopped:  # and its record is complete
                raise InterruptedRunError("stopped")
            recorder.on_round(state, record)
        follow(state)
        status = _status(plan, record, exchange.traffic, time.monotonic() - began)
        phases.n_rounds, phases.completion = status.rounds, state.completion
        watch(status)

    def play() -> None:
        search = Searching(follow=phases.follow, each=at_once(threads))
        round_loop.run(
            plan, variables, n_samples, exchange, on_round=after_round, search=search, network=recorder.network
        )

    def goes_on() -> bool:
        if on_enough is None or not phases.end_search():
            return False
        on_enough(ENDING)
        return True

    recorder.start(
        variables,
        n_samples,
        exchange.traffic,
        uncounted=["a simulation keeps no ledger"] + ([] if noise_seed is None else ["its noise came from a seed"]),
    )
    try:
        attended(play, look=look, goes_on=goes_on)
    except BaseException as error:  # the folder is closed, whatever it was; in a notebook, Ctrl-C is not an Exception
        interrupted = isinstance(error, Interruption | KeyboardInterrupt | InterruptedRunError)
        with recording:  # the round that is being written down is not torn
            exchange.stopped = True
            recorder.finish("interrupted" if interrupted else "failed", str(error) or type(error).__name__)
        phases.end_search()
        raise
    return recorder.finish("finished")


def _nothing_yet(sites: Iterable[str]) -> RoundRecord:
    """In place of a round, before the first."""
    return RoundRecord(0, "", tuple(sites), {}, 0, 0.0, 0, 0.0, 0.0)


def _status(plan: Plan, record: RoundRecord, traffic: Traffic, elapsed_s: float) -> RunStatus:
    sites = tuple(
        SiteProgress(
            site=site,
            answered=True,
            left=False,
            last_seen_s=0.0,
            bytes_up=sum(traffic.up[site].values()),
            bytes_down=sum(traffic.down[site].values()),
            online_s=elapsed_s,
            last_round=record.round,
        )
        for site in record.contributed
    )
    return RunStatus(
        "running",
        record.round,
        record.rounds or n_rounds(plan),
        record.acyclicity,
        record.edges,
        elapsed_s,
        sites,
        time_unix_s=time.time(),
        undirected=record.undirected,
    )
