"""A federation that an older fedbnsl began goes on with this one: identities and ledgers are kept, budgets too."""

import csv
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from free_port import free_port

CHECKOUT = Path(__file__).parents[2]
OLD = "ccb68994e25c53b4a3d0780c6fbd1a889b26f088"
UV = (sys.executable, "-m", "uv")
SITES = ("north", "south")
PLAN = """n_participants = 2
local_solver = "dp-pgcd"
rounds = {rounds}
local_steps = 4
refit_rounds = 0
variables = ["a", "b", "c", "d"]
[privacy]
epsilon = 1.0
delta = 1e-6
clip = 2.0
feature_bounds = [9.0]
"""


def installed(place: Path, *projects: Path) -> Path:
    """`fedbnsl` of an environment with the wheels of these projects alone, and the packages that the tests have."""
    for project in projects:
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", place / "wheels"]
        subprocess.run(build, cwd=project, check=True, capture_output=True)
    subprocess.run([*UV, "venv", "--quiet", "--python", sys.executable, place / "env"], check=True, capture_output=True)
    (packages,) = (place / "env" / "lib").glob("python*/site-packages")
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if "fedbnsl" not in one.name and one.name != "__pycache__" and not (packages / one.name).exists():
            (packages / one.name).symlink_to(one)
    python = place / "env" / "bin" / "python"
    install = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--python", python]
    subprocess.run([*UV, *install, *(place / "wheels").glob("*.whl")], check=True, capture_output=True)
    return place / "env" / "bin" / "fedbnsl"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("old")
    archive = subprocess.run(["git", "archive", OLD], cwd=CHECKOUT, capture_output=True, check=False)
    if archive.returncode:
        pytest.fail(f"needs commit {OLD[:8]}: in a shallow clone, git fetch --unshallow ({archive.stderr.decode()})")
    (place / "sources").mkdir()
    subprocess.run(["tar", "--extract"], cwd=place / "sources", input=archive.stdout, check=True)
    return installed(place, place / "sources")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("new"), CHECKOUT / "client", CHECKOUT)


class Federation:
    """Two sites and a coordinator on this machine, in a folder; each call says with which fedbnsl."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"127.0.0.1:{free_port()}"
        # Compiling takes either version half a minute, and a run of four variables none.
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "NUMBA_DISABLE_JIT": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
            "COLUMNS": "200",
        }

    def call(self, fedbnsl: Path, *arguments: str) -> str:
        with self.process(fedbnsl, *arguments) as process:
            said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        return said

    @contextmanager
    def process(self, fedbnsl: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        with subprocess.Popen(
            [fedbnsl, *arguments],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()
                    try:
                        process.communicate(timeout=60)
                    except subprocess.TimeoutExpired:
                        process.send_signal(signal.SIGABRT)  # it says where it stands
                        pytest.fail(f"{arguments} does not end:\n{process.communicate()[0]}")

    @contextmanager
    def run(self, fedbnsl: Path, plan: str, out: str) -> Iterator[tuple["subprocess.Popen[str]", ...]]:
        """A coordinator and both sites."""
        secure = ["--federation", "federation", "--listen", self.address]
        with (
            self.process(fedbnsl, "coordinator", "serve", plan, *secure, *([f"--out={out}"] if out else [])) as hub,
            self.process(fedbnsl, "participant", "join", self.address, "--policy", "north") as north,
            self.process(fedbnsl, "participant", "join", self.address, "--policy", "south") as south,
        ):
            yield hub, north, south

    def spent(self, fedbnsl: Path, site: str) -> float:
        """The zCDP that a ledger says is spent."""
        found = re.search(r"\(([\d.e-]+) zCDP\); ", self.call(fedbnsl, "participant", "ledger", site))
        assert found is not None
        return float(found[1])


@pytest.fixture
def begun(old: Path, tmp_path: Path) -> Federation:
    """Begun by the old one: enrolled sites, a private run that was paid for, and one that was stopped in the middle."""
    made = Federation(tmp_path)
    for rounds in (3, 4000):
        (tmp_path / f"{rounds}.toml").write_text(PLAN.format(rounds=rounds), encoding="utf-8")
    said = made.call(old, "coordinator", "init", "federation", "--name=heart", "--host=127.0.0.1", "--ca-key=ca.key")
    fingerprint = re.search(r"to compare: (\S+)", said)
    assert fingerprint is not None
    for k, site in enumerate(SITES):
        with (tmp_path / f"{site}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([list("abcd"), *np.random.default_rng(k).standard_normal((300, 4)).tolist()])
        about = [f"--site={site}", f"--data={site}.csv", f"--dataset=ward-{k}", f"--coordinator={made.address}"]
        made.call(old, "participant", "init", site, *about, "--max-epsilon=5", "--max-delta=1e-6")
        made.call(old, "participant", "request", site, "--federation=heart")
        made.call(old, "coordinator", "approve", "federation", f"{site}.request.pem", "--ca-key=ca.key", "--yes")
        made.call(old, "participant", "enrol", site, f"{site}.bundle.toml", f"--fingerprint={fingerprint[1]}")
        for rounds in (3, 4000):
            made.call(old, "participant", "approve", f"{rounds}.toml", site, "--yes")
    with made.run(old, "3.toml", "paid") as processes:
        assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    with made.run(old, "4000.toml", "stopped") as (hub, *_):
        until = time.monotonic() + 120
        while not (tmp_path / "stopped" / "checkpoint.npz").exists():
            assert hub.poll() is None, hub.communicate()[0]
            assert time.monotonic() < until, "no round was over"
            time.sleep(0.1)
        hub.send_signal(signal.SIGTERM)
        hub.communicate(timeout=60)
    return made


@pytest.mark.timeout(600)
def test_what_an_older_version_began_goes_on_and_what_it_spent_stays_spent(
    begun: Federation, old: Path, new: Path
) -> None:
    before = {site: begun.spent(old, site) for site in SITES}
    assert min(before.values()) > 0
    assert {site: begun.spent(new, site) for site in SITES} == before

    with begun.run(new, "stopped", "") as (hub, *_):  # its checkpoint has another format: the way on is said
        said, _ = hub.communicate(timeout=120)
        assert hub.returncode == 9, said
        assert "Another version of fedbnsl began this run" in said
        assert "what the run has spent stays spent" in said
    assert {site: begun.spent(new, site) for site in SITES} == before

    with begun.run(new, "3.toml", "refused") as (_, north, south):  # a default has changed: the plan is another one
        said, _ = north.communicate(timeout=120)
        assert "is not approved" in said
        assert "participant approve plan.toml" in said
        south.communicate(timeout=120)
    assert {site: begun.spent(new, site) for site in SITES} == before

    for site in SITES:
        begun.call(new, "participant", "approve", "refused/plan.toml", site, "--yes")
    with begun.run(new, "3.toml", "paid-again") as processes:  # with the certificates of the old one
        assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    for site in SITES:
        assert begun.spent(new, site) > before[site]
