"""What operators ask of the runs of a folder, on its own machine or from afar: each call may be repeated.

    runs = RunsFolder(Path("runs"))
    runs.start(plan, "cohort-1")   # a second time gives the same run
    runs.want("cohort-1", "stop")  # as does this

`fedbnsl_server.runs.remote` asks the same of a coordinator over HTTPS. Both tell of a run as JSON can hold it.
"""

import hashlib
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedbnsl.errors import FedbnslError, PlanError, ResultError, SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl_server.run.serve import check_plan
from fedbnsl_server.runs import queue
from fedbnsl_server.runs.queue import QueuedRun
from fedbnsl_server.store import operator_commands
from fedbnsl_server.store.run_folder import is_worked_on, load_plan, result_of

Told = dict[str, Any]
"""Of a run: name, number, state, sites awaited, what is wanted of it, since when, plan, digest, sites and study."""

RESULT_FILES = frozenset(
    (
        *("run.json", "plan.toml", "command.txt", "events.jsonl", "result.json", "network.json"),
        *("weights.csv", "edges.csv", "strength.csv", "regressions.csv", "lgbn.json"),
        *("graph.graphml", "graph.dot", "dagitty.txt", "pag.csv", "pag-tetrad.txt", "pag-dagitty.txt"),
    )
)
"""Of a run folder, what is fetched: not the state of a run, which only its coordinator may read."""

_LOOK_S, _WAIT_S = 0.05, 5.0


class Runs(Protocol):
    """The runs of a coordinator, wherever it is. Errors are those of `RunsFolder`."""

    @property
    def place(self) -> str:
        """What a command is told to find them, as typed in a shell."""
        ...

    def all(self) -> list[Told]:
        """All runs that can be read, those that are to be played first at the top."""
        ...

    def one(self, name: str) -> Told:
        """One run, with its folder at the coordinator and, once there is a result, edges, rounds and reason."""
        ...

    def start(self, plan: Plan, name: str, study: str = "") -> Told:
        """Queue a run of a plan; with a name that the very plan has already, that run as it stands."""
        ...

    def want(self, name: str, wanted: str) -> Told:
        """Say that a run is to go on (run), pause or stop; nothing changes if that was said before."""
        ...

    def eject(self, name: str, site: str, from_round: int | None) -> str | None:
        """Take a site out of a run; what became of it, None if that is not known within seconds: ask again."""
        ...

    def files(self, name: str) -> Mapping[str, str]:
        """The files of a run's result with their SHA-256."""
        ...

    def file(self, name: str, file: str) -> bytes:
        """One of them."""
        ...


class RunsFolder:
    """The runs of a folder. What cannot be used raises SetupError, what cannot be read or written ResultError."""

    def __init__(self, folder: Path, *, skip: Callable[[Path, FedbnslError], None] = lambda place, error: None) -> None:
        self.folder = folder
        self._skip = skip  # told of runs that cannot be read

    @property
    def place(self) -> str:
        """See `Runs`."""
        return shlex.quote(str(self.folder))

    def all(self) -> list[Told]:
        """See `Runs`."""
        found: list[Told] = []
        for run in queue.all_runs(self.folder, skip=self._skip):
            try:
                found.append(_told(run))
            except (PlanError, ResultError) as error:
                self._skip(run.folder, error)
        return found

    def one(self, name: str) -> Told:
        """See `Runs`. Raises SetupError if there is none of that name."""
        run = queue.named(self.folder, name)
        told = _told(run) | {"folder": str(run.folder)}
        result = result_of(run.folder)
        if result is not None:
            told |= {"edges": len(result["edges"]), "rounds": len(result["rounds"]), "reason": result["reason"]}
        return told

    def start(self, plan: Plan, name: str, study: str = "") -> Told:
        """See `Runs`. Raises SetupError or PlanError if no site could join it, or the name is that of another plan."""
        check_plan(plan)
        known = {run.name: run for run in queue.all_runs(self.folder, skip=self._skip)}.get(name)
        if known is None:
            return _told(queue.add(self.folder, plan, name, study))
        if known.plan().digest() != plan.digest() or known.study != study:
            raise SetupError(
                f"{known.folder} is there already, a run of another plan or study", remedy="Choose another --name."
            )
        return _told(known)

    def want(self, name: str, wanted: str) -> Told:
        """See `Runs`. Raises SetupError if the run is over, and cannot do that."""
        run = queue.named(self.folder, name)
        state = run.state()
        if state == "finished" or (state in queue.OVER and wanted != "run"):
            raise SetupError(
                f"run {run.name} is over: {state}",
                remedy=f"Begin a new one with its plan: {run.folder / 'plan.toml'}",
            )
        if run.wanted != wanted or state in queue.OVER:
            run = queue.want(run, wanted)
        return _told(run)

    def eject(self, name: str, site: str, from_round: int | None) -> str | None:
        """See `Runs`. Raises SetupError if it was refused."""
        run = queue.named(self.folder, name)
        plan = load_plan(run.folder)  # of a run that has begun
        if not is_worked_on(run.folder):
            operator_commands.refuse_what_the_result_tells(run.folder, site, plan.sites)
        command = operator_commands.pending(run.folder)
        if command is None or (command.site, command.from_round) != (site, from_round):
            command = operator_commands.give(run.folder, site, from_round)
        until = time.monotonic() + _WAIT_S
        while (answer := operator_commands.answer_to(run.folder, command)) is None:
            if time.monotonic() > until:
                return None
            time.sleep(_LOOK_S)
        if not answer.done:
            raise SetupError(answer.text, remedy="Nothing was changed.")
        return answer.text

    def files(self, name: str) -> Mapping[str, str]:
        """See `Runs`. Raises SetupError if there is no result yet."""
        run = queue.named(self.folder, name)
        if result_of(run.folder) is None:
            raise SetupError(
                f"run {name} has no result yet: {run.shown()}", remedy="Wait for its end: coordinator runs wait."
            )
        found = sorted(path.name for path in run.folder.iterdir() if path.name in RESULT_FILES)
        return {file: hashlib.sha256(self.file(name, file)).hexdigest() for file in found}

    def file(self, name: str, file: str) -> bytes:
        """See `Runs`. Raises SetupError if there is no such file."""
        path = queue.named(self.folder, name).folder / file
        if file not in RESULT_FILES or not path.exists():
            raise SetupError(f"run {name} has no file {file!r} in its result", remedy="See which there are.")
        try:
            return path.read_bytes()
        except OSError as error:
            raise ResultError(f"{path} cannot be read: {error.strerror}") from None


def _told(run: QueuedRun) -> Told:
    plan, state = run.plan(), run.shown()
    sites = plan.sites or (result_of(run.folder) or {"sites": ()})["sites"]
    return {
        "name": run.name,
        "study": run.study,
        "run": f"{run.run:016x}",
        "state": state,
        "awaited": list((run.awaited() or ()) if state == queue.WAITING else ()),
        "wanted": run.wanted,
        "since": run.since.isoformat(timespec="seconds"),
        "plan": plan.name,
        "plan_digest": plan.digest().hex(),
        "sites": list(sites),
    }
