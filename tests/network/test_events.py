"""`--hook` and `--traces` of real processes: what happens in a run is told outside it, and can never hurt it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedbnsl_workbench.localnet import LocalNetwork
from forked import forked_network
from otlp_collector import Collector, attributes

LONG_S = 90.0
PLAN = 'variables = ["a", "b", "c"]\nname = "told"\nn_participants = 2\nrounds = 3\nrefit_rounds = 1\n'
SITES = ("north", "south")


class Run:
    """A coordinator, of one run or of a folder of runs, and two sites with public tables: each is a process."""

    def __init__(self, network: LocalNetwork, folder: Path) -> None:
        self._network, self.folder = network, folder
        self.out = folder / "cohort-1"

    def __call__(self, *options: str, of_sites: tuple[str, ...] = (), queued: bool = False) -> None:
        plan, address = self.folder / "plan.toml", self.folder / "address"
        plan.write_text(PLAN, encoding="utf-8")
        what = ["runs", "serve", self.folder] if queued else ["serve", plan, f"--out={self.out}"]
        serve = ["coordinator", *what, "--listen=127.0.0.1:0", "--insecure", f"--address-file={address}"]
        self._network.start("coordinator", [*serve, *options])
        self.await_that(lambda: address.exists())
        for k, site in enumerate(SITES):
            table = self.folder / f"{site}.csv"
            rows = [f"{(i * 7 + k) % 11},{(i * 5) % 13},{(i * i) % 7}" for i in range(60)]
            table.write_text("\n".join(["a,b,c", *rows]), encoding="utf-8")
            join = ["participant", "join", address.read_text(), "--insecure", "--public-data", f"--site={site}"]
            self._network.start(site, [*join, f"--data={table}", *of_sites])
        ends = SITES if queued else ("coordinator", *SITES)
        self.await_that(lambda: all(self._network.ended(name) for name in ends))
        self._network.check()

    def await_that(self, holds: Callable[[], object]) -> None:
        await_that(holds, self._network.check)

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text()

    def edges(self) -> object:
        return json.loads((self.out / "result.json").read_text())["edges"]


def await_that(holds: Callable[[], object], meanwhile: Callable[[], None] = lambda: None) -> None:
    until = time.monotonic() + LONG_S
    while not holds():
        meanwhile()
        assert time.monotonic() < until, "in vain"
        time.sleep(0.05)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with forked_network(tmp_path / "logs") as network:
        yield network


@pytest.fixture
def run(network: LocalNetwork, tmp_path: Path) -> Run:
    return Run(network, tmp_path)


def hook_of(tmp_path: Path, program: str) -> str:
    path = tmp_path / "hook"
    path.write_text(f"#!{sys.executable} -S\n{program}\n", encoding="utf-8")
    path.chmod(0o700)
    return f"--hook={path} {tmp_path / 'told.jsonl'}"


def test_a_hook_hears_the_run_from_its_begin_to_its_end(run: Run, tmp_path: Path) -> None:
    run(hook_of(tmp_path, "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"), "--hook-events=all")
    told = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in told if event["event"] != "notice"]
    assert {event["run"] for event in told} == {"cohort-1"}
    assert sorted(event["site"] for event in told if event["event"] == "site joined") == list(SITES)
    assert [kind for kind in kinds if kind in ("run started", "round over", "run over")] == [
        "run started", *["round over"] * 4, "run over",
    ]  # fmt: skip
    assert [event["outcome"] for event in told if event["event"] == "run over"] == ["finished"]


def test_a_coordinator_of_many_runs_tells_their_names(fedbnsl, run: Run, tmp_path: Path) -> None:
    (tmp_path / "queued.toml").write_text(f'sites = ["north", "south"]\n{PLAN}', encoding="utf-8")
    runs = tmp_path / "runs"
    assert fedbnsl("coordinator", "runs", "start", runs, tmp_path / "queued.toml", "--name=cohort-2").code == 0
    told = tmp_path / "told.jsonl"
    run.folder = runs
    run(hook_of(tmp_path, "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"), queued=True)
    run.await_that(lambda: told.exists() and '"run over"' in told.read_text())
    assert {json.loads(line)["run"] for line in told.read_text().splitlines()} == {"cohort-2"}


def test_a_hook_that_fails_each_time_changes_nothing_but_the_log(run: Run, tmp_path: Path) -> None:
    run(hook_of(tmp_path, "raise SystemExit(7)"))
    assert "the hook failed at 'run started' with exit code 7" in run.log("coordinator")
    assert "the hook failed at 'run over' with exit code 7" in run.log("coordinator")
    assert run.edges()


def test_a_collector_gets_a_span_for_the_run_each_round_and_each_site(run: Run) -> None:
    with Collector() as collector:
        run(f"--traces={collector.url}")
        spans = collector.spans("fedbnsl-coordinator")
    by_name = {name: [span for span in spans if span.name == name] for name in ("run", "round", "site")}
    (whole,) = by_name["run"]
    assert len({span.trace_id for span in spans}) == 1
    assert [attributes(span.attributes)["fedbnsl.round"] for span in by_name["round"]] == [1, 2, 3, 4]
    assert {span.parent_span_id for span in by_name["round"]} == {whole.span_id}
    rounds = {span.span_id: attributes(span.attributes) for span in by_name["round"]}
    answers = [(rounds[span.parent_span_id], attributes(span.attributes)) for span in by_name["site"]]
    assert sorted((one["fedbnsl.round"], site["fedbnsl.site"]) for one, site in answers) == [
        (t, site) for t in (1, 2, 3, 4) for site in SITES
    ]
    assert all(site["fedbnsl.answered"] and site["fedbnsl.bytes"] > 0 for _, site in answers)
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    assert attributes(whole.attributes)["fedbnsl.finished"]


def test_a_collector_that_is_away_costs_a_run_nothing_but_its_traces(run: Run) -> None:
    run("--traces=http://127.0.0.1:1")
    assert run.log("coordinator").count("traces cannot be sent to http://127.0.0.1:1/v1/traces") == 1
    assert run.edges()


def test_a_site_tells_its_own_hook_and_its_own_collector(run: Run, tmp_path: Path) -> None:
    keeps = hook_of(tmp_path, "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())")
    with Collector() as collector:
        run(of_sites=(keeps, "--hook-events=all", f"--traces={collector.url}"))
        spans = collector.spans("fedbnsl-participant")
    told = [json.loads(line)["event"] for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert {kind: told.count(kind) for kind in ("run joined", "round asked", "released", "run over")} == {
        "run joined": 2, "round asked": 8, "released": 8, "run over": 2,
    }  # fmt: skip
    by_name = {name: [span for span in spans if span.name == name] for name in ("run", "round", "site")}
    assert {name: len(found) for name, found in by_name.items()} == {"run": 2, "round": 8, "site": 0}
    assert all(attributes(span.attributes)["fedbnsl.bytes"] > 0 for span in by_name["round"])
    assert all(attributes(span.attributes)["fedbnsl.finished"] for span in by_name["run"])


def test_who_asks_twice_to_end_ends_a_hook_that_hangs_as_well(network: LocalNetwork, tmp_path: Path) -> None:
    hook = hook_of(tmp_path, "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)")
    address, hooked, log = tmp_path / "address", tmp_path / "told.jsonl", tmp_path / "logs" / "coordinator.log"
    serve = ["coordinator", "serve", "lean", "--insecure", "--variables=a,b", "--listen=127.0.0.1:0"]
    network.start("coordinator", [*serve, f"--out={tmp_path / 'run'}", f"--address-file={address}", hook])
    pid = network.pid("coordinator")
    await_that(address.exists)
    os.kill(pid, signal.SIGTERM)
    await_that(lambda: "continue with:" in log.read_text() and hooked.exists() and hooked.read_text())
    os.kill(pid, signal.SIGTERM)
    await_that(lambda: network.ended("coordinator"))
    network.check()  # it ended as after one signal
    await_that(lambda: is_gone(int(hooked.read_text())))


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hook=no-such-command-anywhere"], "no command 'no-such-command-anywhere'"),
        (["--hook-events=paused"], "--hook-events goes with --hook"),
        (["--hook=true", "--hook-events=pause"], "there is no event 'pause'"),
        (["--traces=http://192.0.2.1:4318"], "not on this machine"),
    ],
)
def test_what_cannot_listen_is_refused_before_a_port_is_open(fedbnsl, tmp_path: Path, options, said: str) -> None:
    common = ["lean", "--insecure", "--variables=a,b", "--listen=127.0.0.1:0", f"--out={tmp_path / 'run'}"]
    outcome = fedbnsl("coordinator", "serve", *common, *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
    assert not (tmp_path / "run").exists()
    table = ["--insecure", "--public-data", "--site=north", f"--data={tmp_path / 'absent.csv'}"]
    outcome = fedbnsl("participant", "join", "127.0.0.1:1", *table, *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err


def test_without_the_extra_it_is_named(fedbnsl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "fedbnsl.events.traces", raising=False)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    outcome = fedbnsl(
        "coordinator", "serve", "lean", "--insecure", "--variables=a,b", "--listen=127.0.0.1:0",
        f"--out={tmp_path / 'run'}", "--traces=http://127.0.0.1:4318",
    )  # fmt: skip
    assert outcome.code == 2
    assert "pip install 'fedbnsl-site[otel]'" in outcome.err


def test_a_variable_of_the_environment_alone_sends_nothing_and_loads_nothing() -> None:
    program = "import sys\nfrom fedbnsl.events.options import Listeners\nwith Listeners().listening('x') as emit:\n"
    program += "    emit('run started', run='r')\nassert not [m for m in sys.modules if 'opentelemetry' in m]"
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=100)
