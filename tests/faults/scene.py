"""One small federation of real processes behind a proxy, started and restarted as a service manager would."""

import json
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from faults.killable import Blow, Command
from faults.proxy import Proxy
from fedbnsl.plan.plan import Plan
from fedbnsl_client.site import folder as site_folder
from private_site import make_site, private_plan, rows, write_table
from waiting import until

SITES = ("north", "south")
VARIABLES = ("age", "dose", "mass", "pulse")
COORDINATOR = "coordinator"
LONG_S = 60.0

_TIMES = {"join_deadline_s": 30.0, "rpc_timeout_s": 5.0, "site_grace_s": 2.0, "run_deadline_s": 60.0}


def public_plan(**settings: Any) -> Plan:
    """Three rounds and a refit of two sites whose tables anybody may see."""
    plan = Plan(n_participants=2, rounds=3, refit_rounds=1, variables=VARIABLES)
    return plan.with_settings(**{**_TIMES, **settings})


def guarded_plan(**settings: Any) -> Plan:
    """Three private rounds of two sites, with a setup of their own (estimated second moments)."""
    return private_plan(**{**_TIMES, "variables": VARIABLES, **settings})


class Scene:
    """A plan, its sites with their tables, a proxy between them and the coordinator, and all processes of a test.

    Parameters
    ----------
    folder
        Everything lies in it: tables, site folders, the run folder, logs.
    max_epsilon
        What each site's policy lets its table lose.
    constants
        Of every process, see `Command`.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        *,
        sites: tuple[str, ...] = SITES,
        max_epsilon: float = 5.0,
        constants: Mapping[str, object] | None = None,
    ) -> None:
        self.folder, self.plan, self.sites, self._constants = folder, plan, sites, constants
        self.run = folder / "run"
        self.proxy = Proxy()
        self.patience_s = 5.0  # of a site that has not joined
        self.commands: dict[str, list[Command]] = defaultdict(list)
        self.addresses: list[str] = []  # of the coordinator so far
        self._address = folder / "address"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.toml").write_text(plan.to_toml(), encoding="utf-8")
        for seed, site in enumerate(sites, 1):
            table = write_table(folder / site / "table.csv", _rows(seed), VARIABLES)
            if plan.privacy is not None:
                make_site(folder / site, table=table, site=site, max_epsilon=max_epsilon)
                with site_folder.opened(folder / site) as (_, ledger):
                    ledger.approvals.approve(plan.digest(), plan.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for commands in self.commands.values():
            for command in commands:
                command.end()
        self.proxy.__exit__()

    # ---- processes --------------------------------------------------------------------------------------------------

    def start(self, name: str, blow: Blow | None = None, **limits: Any) -> Command:
        """Start the coordinator or a site; the same command each time."""
        if name == COORDINATOR:
            arguments: list[str | Path] = ["coordinator", "serve", self.folder / "plan.toml", "--listen=127.0.0.1:0"]
            arguments += ["--insecure", f"--out={self.run}", f"--address-file={self._address}"]
            self._address.unlink(missing_ok=True)
        else:
            arguments = ["participant", "join", self.proxy.address, "--insecure", f"--patience={self.patience_s:g}"]
            if self.plan.privacy is None:
                arguments += ["--public-data", f"--site={name}", f"--data={self.folder / name / 'table.csv'}"]
            else:
                arguments += [f"--policy={self.folder / name}"]
            arguments += [f"--out={self.folder / name / 'out'}"]
        command = Command(arguments, self.folder / f"{name}.log", blow=blow, **{"constants": self._constants, **limits})
        self.commands[name].append(command)
        return command

    def open(self, blow: Blow | None = None, **limits: Any) -> Command:
        """Start the coordinator and let the proxy lead to it."""
        command = self.start(COORDINATOR, blow, **limits)
        self.until(lambda: self._address.exists() or command.returncode is not None, "the coordinator listens")
        self._follow()
        return command

    def perform(self, blows: Mapping[str, Sequence[Blow]] | None = None) -> dict[str, list[int]]:
        """Start everybody, restart whoever is killed, with the same command, and return all exit codes by name.

        Parameters
        ----------
        blows
            By name, one for each life of a process but the last.
        """
        left = {name: list(lives) for name, lives in (blows or {}).items()}
        self.open(_next(left, COORDINATOR))
        for site in self.sites:
            self.start(site, _next(left, site))
        return self.last(left)

    def perform_while_cut(self) -> dict[str, list[int]]:
        """The whole run, while all connections are cut again and again; all exit codes by name."""
        self.open()
        for site in SITES:
            self.start(site)
        self.proxy.up.delay_s = 0.02  # so that the cuts fall into the rounds
        cuts = 0
        while cuts < 8:
            time.sleep(0.15)
            cuts += self.proxy.cut()
        return self.last()

    def last(self, left: Mapping[str, list[Blow]] | None = None) -> dict[str, list[int]]:
        """Wait for the end of all processes, restarting whoever is killed; all exit codes by name."""

        def over() -> bool:
            self._follow()
            for name, commands in self.commands.items():
                if commands[-1].returncode == -signal.SIGKILL:
                    self.start(name, _next(left or {}, name))
            return all(commands[-1].returncode is not None for commands in self.commands.values())

        self.until(over, "the end of all processes")
        return {name: [command.wait(0) for command in commands] for name, commands in self.commands.items()}

    def _follow(self) -> None:
        if self._address.exists():
            self.proxy.upstream = self._address.read_text(encoding="utf-8")
            if self.proxy.upstream not in self.addresses:
                self.addresses.append(self.proxy.upstream)

    # ---- what can be seen -------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something; the AssertionError shows everything that was said."""
        until(condition, what, lambda: self.said, look_s=0.02)

    @property
    def said(self) -> str:
        """All logs."""
        return "\n".join(f"---- {log.name}\n{log.read_text(encoding='utf-8')}" for log in self.folder.glob("*.log"))

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.run / "result.json").read_text(encoding="utf-8"))

    @property
    def events(self) -> list[dict[str, Any]]:
        text = (self.run / "events.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _next(left: Mapping[str, list[Blow]], name: str) -> Blow | None:
    return left[name].pop(0) if left.get(name) else None


def _rows(seed: int) -> Any:
    """A chain age -> dose -> mass -> pulse, so that there is something to learn."""
    X = rows(seed, d=len(VARIABLES))
    for child in range(1, len(VARIABLES)):
        X[:, child] += 0.8 * X[:, child - 1]
    return X
