"""The lowest versions that `pyproject.toml` allows are those of the generated code, and what runs with them works."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
FOLDERS = ("client", ".", "research")
FILES = [tomllib.loads((CHECKOUT / folder / "pyproject.toml").read_text(encoding="utf-8")) for folder in FOLDERS]
PROJECT = FILES[0]["project"]
DEPENDENCIES = [*PROJECT["dependencies"], *FILES[1]["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"]]
WIRE = CHECKOUT / "common/fedbnsl/wire"
EXTRAS = ("parquet", "database", "dask", "otel")

# Each module in one process, as one that needs a newer library would fail where it is loaded first.
IMPORT_ALL = """
import importlib, pkgutil
for root in ("fedbnsl", "fedbnsl_server", "fedbnsl_client", "fedbnsl_workbench", "fedbnsl_research"):
    for module in pkgutil.walk_packages(importlib.import_module(root).__path__, root + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def bounds(package: str) -> tuple[str, str]:
    """The lower and the upper bound of a dependency; '' for none."""
    [bounds] = [line.removeprefix(package) for line in DEPENDENCIES if re.match(rf"{package}\b[^-]", line)]
    lower, _, upper = bounds.removeprefix(">=").partition(",<")
    return lower, upper


@pytest.mark.parametrize("path", sorted(WIRE.glob("*_pb2.py")), ids=lambda path: path.name)
def test_the_bounds_of_protobuf_are_those_of_the_generated_code(path: Path) -> None:
    """Its runtime takes code of its own version or older, of its own or the last major version."""
    called = re.search(r"Domain\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+),", path.read_text(encoding="utf-8"))
    assert called is not None
    major, minor, patch = called.groups()
    assert bounds("protobuf") == (f"{major}.{minor}.{patch}", str(int(major) + 2))


@pytest.mark.parametrize("path", sorted(WIRE.glob("*_pb2_grpc.py")), ids=lambda path: path.name)
def test_the_lower_bound_of_grpc_is_that_of_the_generated_code(path: Path) -> None:
    generated = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", path.read_text(encoding="utf-8"))
    assert generated is not None
    assert bounds("grpcio")[0] == bounds("grpcio-health-checking")[0] == generated[1]


def installed(place: Path) -> Path:
    """The folder of programs of an environment with the lowest versions, or a skip that says why there is none."""
    if importlib.util.find_spec("uv") is None:
        pytest.skip("needs uv, which make installs")
    uv = [sys.executable, "-m", "uv"]
    python = f"{PROJECT['requires-python'].removeprefix('>=')}"
    made = subprocess.run(
        [*uv, "venv", "--quiet", "--python", python, place], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"needs Python {python}, which the lowest versions were made for: {made.stderr.strip()}")
    projects = [f"{CHECKOUT / 'client'}[{','.join(EXTRAS)}]", CHECKOUT, CHECKOUT / "research"]
    done = subprocess.run(
        [*uv, "pip", "install", "--quiet", "--python", place, "--resolution", "lowest-direct", *projects],
        capture_output=True,
        text=True,
        check=False,
    )
    if "error sending request" in done.stderr:
        pytest.skip(f"no package registry can be reached: {done.stderr.strip().splitlines()[-1].strip()}")
    assert done.returncode == 0, done.stderr
    return place / "bin"


@pytest.mark.timeout(1200)  # it installs and compiles from nothing: a minute on a machine that does nothing else
def test_the_lowest_versions_can_be_loaded_and_run(tmp_path: Path) -> None:
    programs = installed(tmp_path / "env")
    own = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "XDG_STATE_HOME": str(tmp_path / "state")}

    def run(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [programs / program, *arguments],
            cwd=tmp_path,
            env={**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    run("python", "-c", IMPORT_ALL)
    run("fedbnsl", "data", "hospital", "--out", "tables")  # kinds, spellings, missing values
    # Over gRPC, with enrolment, secure aggregation, noise and compiled kernels.
    run("fedbnsl", "demo", "--private", "--plan", "private", "--data", "tables", "--out", "run")
    run("fedbnsl", "report", "run")
