"""Real processes over loopback: one coordinator and its participants, started, watched and always ended."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fedbnsl.console.interrupt import Interruption
from fedbnsl.errors import FedbnslError, RunAbandonedError, UnreachableError
from fedbnsl.events.security_log import NAME
from fedbnsl.files.durable import make_folder, write_text
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.protocol.messages import RunStatus
from fedbnsl_client.budget.report import ledger_as_json
from fedbnsl_client.cli import warnings_on_stderr
from fedbnsl_client.data.site_files import DICTIONARY, column_file
from fedbnsl_client.data.sources.csv_table import read_header
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.new_site import NewSite
from fedbnsl_server.observe.status_client import Observer
from fedbnsl_server.run.phases import ENDING
from fedbnsl_workbench.attended import is_ctrl_c
from fedbnsl_workbench.fork_server import Forked
from fedbnsl_workbench.tables.folder import csv_line

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation

_START_S = 60.0
_POLL_S = 0.1
_LOOK_S = 0.01
_TERMINATE_S = 2.0
_LAST_WORDS_S = 5.0
_DAYS = 7  # that the certificates of a run on one machine are valid

COORDINATOR = "coordinator"
STATE = "state"
_PAGE = "page: "  # what a coordinator says before it says that it listens
_CONSEQUENCES = (RunAbandonedError.exit_code, UnreachableError.exit_code)


class ProcessError(FedbnslError):
    """A process of the local network failed; the command ends with that process's exit code."""

    remedy = "The logs folder of the run holds all that the processes printed."

    def __init__(self, name: str, code: int, log: Path) -> None:
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-6:]
        super().__init__("\n".join([f"{name} ended with exit code {code}:", *(f"  {line}" for line in tail)]))
        self.exit_code = code if code > 0 else 1  # ended by a signal: negative


class LocalNetwork:
    """The processes of one run; leaving the context ends every one of them.

    Parameters
    ----------
    logs
        Folder for one log file a process.
    forked
        Whether the processes come from the fork server; else each starts by itself, as on a machine of its own.
    """

    def __init__(self, logs: Path, *, forked: bool = False) -> None:
        self._logs = logs
        self._forked = forked
        self._processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        self._files = ExitStack()

    def __enter__(self) -> "LocalNetwork":
        make_folder(self._logs)
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        self._files.close()

    def start(self, name: str, arguments: Sequence[str | Path]) -> None:
        """Start `fedbnsl ARGUMENTS` in a session of its own, so that Ctrl-C reaches only the process that ends it."""
        log = self._files.enter_context(self._log(name).open("wb"))
        if self._forked:
            self._processes[name] = Forked(arguments, self._log(name))
            return
        self._processes[name] = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "fedbnsl", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def scratch(self) -> Path:
        """A new folder for as long as the processes: one may still use a file there that another has read."""
        return Path(self._files.enter_context(tempfile.TemporaryDirectory()))

    def pid(self, name: str) -> int:
        """Process id."""
        return self._processes[name].pid

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process, unless it has ended."""
        self._processes[name].send_signal(number)

    def ended(self, name: str) -> bool:
        """Whether a process has ended."""
        return self._processes[name].poll() is not None

    def wait_for_an_end(self, most_s: float) -> None:
        """Wait until one more process has ended, but so many seconds at most."""
        until, running = time.monotonic() + most_s, sum(not self.ended(name) for name in self._processes)
        while time.monotonic() < until and sum(not self.ended(name) for name in self._processes) == running:
            time.sleep(_LOOK_S)

    def check(self) -> None:
        """Raise ProcessError if a process has failed, for the one that made the others fail.

        That a site lost its coordinator is a consequence: the coordinator then gets a moment to end with its reason.
        """
        failed = self._failed()
        if failed and all(code in _CONSEQUENCES for code in failed.values()):
            with suppress(subprocess.TimeoutExpired):
                self._processes[COORDINATOR].wait(_LAST_WORDS_S)
            failed = self._failed()
        for name in sorted(failed, key=lambda name: (failed[name] in _CONSEQUENCES, name == COORDINATOR)):
            raise ProcessError(name, failed[name], self._log(name))

    def _failed(self) -> dict[str, int]:
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code}

    def said(self, name: str) -> list[str]:
        """Lines that a process has printed."""
        return self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()

    def end(self) -> None:
        """SIGTERM to all that still run, SIGKILL to what is left after 2 s."""
        running = [process for process in self._processes.values() if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + _TERMINATE_S
        for process in running:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


@dataclass(frozen=True)
class Viewer:
    """Who looks on at a run."""

    show: Callable[[RunStatus], None] = lambda status: None
    say: Callable[[str], None] = lambda text: None
    """Told where the page is, and that the first Ctrl-C while the coordinator searches ends that search alone."""
    web: str | None = None
    """host:port of the coordinator's page; None: it has none."""


def run(
    plan: Plan,
    tables: Mapping[str, Path],
    out: Path,
    *,
    viewer: Viewer = Viewer(),  # frozen
    seeds: Mapping[str, int],
    min_rows: int | None = None,
    own_state: bool = False,
    forked: bool = False,
) -> None:
    """One run over loopback; on return `out` holds the coordinator's run folder.

    Participants keep their graph and personalised weights in out/sites/<site>, logs are in out/logs. With a private
    plan, each has a policy, which lets its table lose twice the plan's epsilon, and a ledger in out/sites/<site>/guard.
    For secure aggregation all are enrolled in a federation, in out/federation, and have confirmed each other.
    A plan that does not name its variables gets those of its data dictionary or, without one, of the first table, in
    their order. With a dictionary, each table is read by it and by its own column file (`column_file`).

    Parameters
    ----------
    min_rows
        Rows that each site asks of its table in a run without privacy; None: as many as a site does by itself. With
        privacy its policy says it.
    own_state
        Note how far ledgers are in out/state and not in the user's state directory: for tables that were generated.
    forked
        See `LocalNetwork`.

    Raises
    ------
    DataError
        If the first table has no header.
    ProcessError
        If a process fails; all others are ended, as after any other exception.
    """
    if not plan.column_names:
        plan = plan.with_settings(variables=read_header(next(iter(tables.values()))))
    with _ledgers_noted(out / STATE if own_state else None), LocalNetwork(out / "logs", forked=forked) as network:
        dictionary, federation = _kept_dictionary(plan, out), _federation(plan, out)
        guards: dict[str, Path] = {}
        if plan.privacy is not None:
            guards = {s: _guard(out, s, table, plan, plan.privacy, dictionary) for s, table in tables.items()}
        if federation is not None:
            _enrol(federation, guards)
        folder = None if federation is None else federation.folder
        address = start_coordinator(network, plan, out, seeds=seeds, federation=folder, web=viewer.web)
        if viewer.web is not None:
            viewer.say(f"page: {page_of(network)}")
        for site, table in tables.items():
            join: list[str | Path] = ["participant", "join", address, f"--out={out / 'sites' / site}"]
            join += ["--insecure"] if federation is None else []
            if plan.privacy is None:
                join += [f"--site={site}", f"--data={table}", "--public-data"]
                join += [] if min_rows is None else [f"--min-rows={min_rows}"]
                join += [f"--columns={csv_line(plan.variables)}"] if plan.variables else []
                if dictionary is not None:
                    here = column_file(table)
                    join += [f"--dictionary={dictionary}", *([] if here is None else [f"--column-map={here}"])]
                network.start(site, join)
            else:
                network.start(site, [*join, f"--policy={guards[site]}"])
        credentials = None if federation is None else federation.credentials()
        _watch(network, Observer(address, credentials), list(tables), viewer)


def start_coordinator(
    network: LocalNetwork,
    plan: Plan,
    out: Path,
    *,
    seeds: Mapping[str, int],
    federation: Path | None = None,
    web: str | None = None,
) -> str:
    """Start the process named COORDINATOR, with `out` for its run folder, and return host:port once sites can call.

    With a federation's folder it speaks TLS, otherwise plaintext. With `web`, host:port, it has a page: `page_of`.
    """
    scratch = network.scratch()
    plan_file, address_file = scratch / "plan.toml", scratch / "address"
    plan_file.write_text(plan.to_toml(), encoding="utf-8")
    noted = [f"--seed={name}={seed}" for name, seed in seeds.items()]
    serve: list[str | Path] = ["coordinator", "serve", plan_file, "--listen=127.0.0.1:0"]
    serve.append("--insecure" if federation is None else f"--federation={federation}")
    serve += [f"--out={out}", f"--address-file={address_file}", f"--site-ledgers={out / 'site-ledgers.json'}"]
    serve += [f"--security-log={out / NAME}", *([] if web is None else [f"--web={web}"])]
    network.start(COORDINATOR, [*serve, *noted])
    return _await_address(address_file, network)


def page_of(network: LocalNetwork) -> str:
    """Where the page of a coordinator is that was started with one."""
    return next(line.removeprefix(_PAGE) for line in network.said(COORDINATOR) if line.startswith(_PAGE))


def read_ledgers(out: Path, sites: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each site of a private run has spent and has left, from its own ledger."""
    spent: dict[str, dict[str, Any]] = {}
    state = out / STATE
    with _ledgers_noted(state if state.exists() else None):
        for site in sites:
            with site_folder.opened(_guard_folder(out, site)) as (policy, ledger):
                spent[site] = ledger_as_json(policy, ledger)["datasets"][0]
    return spent


@contextmanager
def _ledgers_noted(state: Path | None) -> Generator[None]:
    """Let this process and those that it starts note in `state` how far ledgers are; None: where the user has it."""
    before = os.environ.get("XDG_STATE_HOME")
    if state is not None:
        os.environ["XDG_STATE_HOME"] = str(state.resolve())
    try:
        yield
    finally:
        if before is not None:
            os.environ["XDG_STATE_HOME"] = before
        elif state is not None:
            del os.environ["XDG_STATE_HOME"]


def _guard_folder(out: Path, site: str) -> Path:
    return out / "sites" / site / "guard"


def _kept_dictionary(plan: Plan, out: Path) -> Path | None:
    """A file with the plan's data dictionary, for the sites; None if it has none."""
    if not plan.dictionary:
        return None
    content = plan.dictionary.model_dump(mode="json", exclude_defaults=True)
    write_text(out / DICTIONARY, tomli_w.dumps(content))
    return out / DICTIONARY


def _guard(out: Path, site: str, table: Path, plan: Plan, privacy: Privacy, dictionary: Path | None) -> Path:
    """A site's folder with policy and ledger, in which the plan is approved."""
    folder = _guard_folder(out, site)
    with warnings_on_stderr(site):
        site_folder.create(
            folder,
            NewSite(
                site,
                table,
                dataset_id=table.stem,
                columns=plan.variables,
                dictionary=dictionary,
                column_map=None if dictionary is None else column_file(table),
                max_epsilon=2 * privacy.epsilon,
                max_epsilon_per_run=privacy.epsilon,
                max_delta=privacy.delta or None,
                max_epsilon_against_all=2 * _epsilon_against_all(plan) if privacy.secure_aggregation else None,
            ),
        )
    with site_folder.opened(folder) as (_, ledger):
        ledger.approvals.approve(plan.digest(), plan.name)
    return folder


def _epsilon_against_all(plan: Plan) -> float:
    """What any site pays against all others under secure aggregation, whose plan has a delta: rows do not matter."""
    from fedbnsl.privacy.calibration import price_of  # here, as below: the demo watches without the mathematics
    from fedbnsl.privacy.report import epsilon_of_share

    return epsilon_of_share(price_of(plan, n_samples=1, n_variables=len(plan.column_names)))


def _federation(plan: Plan, out: Path) -> "Federation | None":
    """One for a plan with secure aggregation, whose sites must know each other; None: plaintext on loopback."""
    if not plan.secure_aggregation:
        return None
    from fedbnsl_server.identity.enrolment import Federation

    return Federation.create(out / "federation", name="demo", hosts=("127.0.0.1",), days=_DAYS, ca_days=_DAYS)


def _enrol(federation: "Federation", guards: Mapping[str, Path]) -> None:
    """Enrol every site, and let each confirm all others, whose people would compare fingerprints by telephone."""
    from fedbnsl.identity.certificates import Name, key_fingerprint
    from fedbnsl_client.secure_aggregation import peers
    from fedbnsl_client.secure_aggregation.keys import public_key_of
    from fedbnsl_client.site import identity

    prints: dict[str, str] = {}
    for site, guard in guards.items():
        bundle = federation.approve(identity.request(guard, Name(federation.name, site)), days=_DAYS)
        enrolled = identity.enrol(guard, bundle, expected_fingerprint=federation.fingerprint)
        prints[site] = key_fingerprint(public_key_of(enrolled.certificate))
    for site, guard in guards.items():
        for other in prints.keys() - {site}:
            peers.confirm(guard, other, prints[other])


def _await_address(address_file: Path, network: LocalNetwork) -> str:
    until = time.monotonic() + _START_S
    while not address_file.exists():
        network.check()
        if time.monotonic() > until:
            raise FedbnslError(f"the coordinator did not start within {_START_S:g} s; see its log")
        time.sleep(_LOOK_S)
    return address_file.read_text(encoding="utf-8")


def _watch(network: LocalNetwork, observer: Observer, sites: Sequence[str], viewer: Viewer) -> None:
    seen: RunStatus | None = None
    asked = False
    try:
        while not all(network.ended(name) for name in [COORDINATOR, *sites]):
            try:
                network.check()
                if network.ended(COORDINATOR):
                    seen = None
                elif (status := observer.status()) is not None:
                    seen = status
                    viewer.show(status)
                network.wait_for_an_end(_POLL_S)
            except Interruption as error:
                searches = seen is not None and seen.phase is not None and seen.phase.is_search
                if asked or not (is_ctrl_c(error) and searches):
                    raise
                asked = True
                network.send_signal(COORDINATOR, signal.SIGINT)
                viewer.say(ENDING)
        network.check()
    finally:
        observer.close()
