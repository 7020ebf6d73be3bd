"""Python 3.11 to 3.14: wheels of all dependencies exist for each, and fedbnsl runs on those that are at hand."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
UV = (sys.executable, "-m", "uv")


def project(folder: str) -> dict:
    return tomllib.loads((CHECKOUT / folder / "pyproject.toml").read_text(encoding="utf-8"))


def dependencies() -> list[str]:
    """Of all that a site or a consortium may install."""
    site, consortium = project("client")["project"], project(".")
    extras = [line for lines in site["optional-dependencies"].values() for line in lines]
    return [
        *site["dependencies"],
        *extras,
        *consortium["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"],
    ]


def uv(*arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*UV, *map(str, arguments)], input=given, capture_output=True, text=True, check=False)
    if "error sending request" in done.stderr:
        pytest.skip(f"no package registry can be reached: {done.stderr.strip().splitlines()[-1].strip()}")
    return done


def test_these_versions_are_the_ones_that_are_declared() -> None:
    of_language = "Programming Language :: Python :: "
    declared = [
        line.removeprefix(of_language) for line in project(".")["project"]["classifiers"] if of_language in line
    ]
    assert tuple(declared) == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_every_dependency_has_a_wheel(version: str) -> None:
    done = uv(
        *("pip", "compile", "--quiet", "--no-header", "--only-binary", ":all:", "--python-version", version, "-"),
        given="\n".join(dependencies()),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_site_runs_on_each_version_at_hand(version: str, tmp_path: Path) -> None:
    found = uv("python", "find", "--no-python-downloads", version)
    if found.returncode:
        pytest.skip(f"no Python {version} on this machine: only the wheels of its dependencies were looked at")
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"all other tests run on Python {version}")
    environment = tmp_path / "env"
    assert uv("venv", "--quiet", "--python", version, environment).returncode == 0
    done = uv("pip", "install", "--quiet", "--python", environment, CHECKOUT / "client")
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [environment / "bin" / "fedbnsl", "plan", "list"],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "standard" in listed.stdout, listed.stderr
