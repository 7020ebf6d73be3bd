"""The three distributions: each is installed without the checkout and without a network, and does its part."""

import email
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
UV = (sys.executable, "-m", "uv")  # as pip does, in a tenth of the time
FOLDERS = {"fedbnsl-site": "client", "fedbnsl": ".", "fedbnsl-research": "research"}
PACKAGES = {
    "fedbnsl-site": {"fedbnsl", "fedbnsl_client"},
    "fedbnsl": {"fedbnsl_server", "fedbnsl_workbench"},
    "fedbnsl-research": {"fedbnsl_research"},
}


def wheels_of(folder: Path, place: Path) -> dict[str, Path]:
    """The wheels of the three distributions, by name, built from a folder with the sources."""
    found = {}
    for name, part in FOLDERS.items():
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", place]
        subprocess.run(build, cwd=folder / part, check=True, capture_output=True)
        (found[name],) = place.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
    return found


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return wheels_of(CHECKOUT, tmp_path_factory.mktemp("wheels"))


def held(wheel: Path) -> list[Path]:
    with zipfile.ZipFile(wheel) as archive:
        return [Path(name) for name in archive.namelist()]


def metadata(wheel: Path) -> email.message.Message:
    (name,) = [str(path) for path in held(wheel) if path.name == "METADATA"]
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(name))


def test_every_file_is_in_one_wheel_with_the_types_of_its_package(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        files = [path for path in held(wheel) if not path.parts[0].endswith(".dist-info")]
        assert {path.parts[0] for path in files} == PACKAGES[name]
        assert {path.parts[0] for path in files if path.name == "py.typed"} == PACKAGES[name]
        assert not [path for path in files if path.suffix in (".pyc", ".nbi", ".nbc")]


def test_an_editable_install_reads_the_sources_where_they_are(tmp_path: Path) -> None:
    code = "from hatchling.build import build_editable; import sys; print(build_editable(sys.argv[1]))"
    for part in FOLDERS.values():
        subprocess.run([sys.executable, "-c", code, tmp_path], cwd=CHECKOUT / part, check=True, capture_output=True)
    files = [path for wheel in tmp_path.glob("*.whl") for path in held(wheel)]
    assert not [path for path in files if path.suffix == ".py"]


def test_a_distribution_asks_for_the_others_in_its_own_version(wheels: dict[str, Path]) -> None:
    (version,) = {metadata(wheel)["Version"] for wheel in wheels.values()}
    needs = {name: metadata(wheel).get_all("Requires-Dist", []) for name, wheel in wheels.items()}
    own = {name: [line for line in lines if line.startswith("fedbnsl")] for name, lines in needs.items()}
    assert own == {
        "fedbnsl-site": [],
        "fedbnsl": [f"fedbnsl-site=={version}"],
        "fedbnsl-research": [f"fedbnsl=={version}"],
    }


def test_the_same_wheels_can_be_built_from_the_source_distribution(wheels: dict[str, Path], tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "--extract", "--file", archive, "--directory", tmp_path], check=True)
    (unpacked,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    for name, wheel in wheels_of(unpacked, tmp_path / "wheels").items():
        assert sorted(held(wheel)) == sorted(held(wheels[name]))


@pytest.fixture(scope="module")
def wheelhouse(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels of the consortium's bundle, and beside them the one of research."""
    place = tmp_path_factory.mktemp("bundle")
    done = subprocess.run(
        [CHECKOUT / "deploy" / "make-bundle", "consortium", place, "without-images"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if "No matching distribution" in done.stderr or "Connection" in done.stderr:
        pytest.skip(f"no package registry can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=place, check=True)
    listed = {line.split(maxsplit=1)[1] for line in (place / "SHA256SUMS").read_text().splitlines()}
    there = {f"./{path.relative_to(place)}" for path in place.rglob("*") if path.is_file()}
    assert there - listed == {"./SHA256SUMS"}
    assert "./install-offline.md" in listed
    place /= "wheels"
    for wheel in wheels.values():
        (place / wheel.name).write_bytes(wheel.read_bytes())
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds one environment, empty at first, which gets one distribution after another: each brings those before it."""
    place = tmp_path_factory.mktemp("installed")
    subprocess.run([*UV, "venv", "--quiet", "env"], cwd=place, check=True, capture_output=True)
    return place


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("distribution", "commands"),
    [
        ("fedbnsl-site", {"data", "participant", "plan", "privacy"}),
        (
            "fedbnsl",
            {"participant", "plan", "privacy", "coordinator", "data", "demo", "effect", "evaluate", "network", "report"}
            | {"simulate"},
        ),
        (
            "fedbnsl-research",
            {"participant", "plan", "privacy", "coordinator", "data", "demo", "effect", "evaluate", "network", "report"}
            | {"simulate", "bench", "reproduce", "tune"},
        ),
    ],
)
def test_a_distribution_works_without_a_network_and_without_those_that_build_on_it(
    distribution: str, commands: set[str], wheelhouse: Path, place: Path, tmp_path: Path
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "NUMBA_CACHE_DIR": str(place / "kernels"),
    }

    def run(*arguments: object) -> str:
        done = subprocess.run(
            [str(argument) for argument in arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    programs = place / "env" / "bin"
    source = ("--no-index", "--find-links", wheelhouse)
    run(*UV, "pip", "install", "--quiet", "--python", place / "env", *source, distribution)
    listed = run(programs / "fedbnsl", "--help").partition("Commands:")[2].partition("Exit codes")[0]
    assert {line.split()[0] for line in listed.splitlines() if line.strip()} == commands
    assert "standard" in run(programs / "fedbnsl", "plan", "list")
    (tmp_path / "tables").mkdir()
    lines = ["age,dose,pain", *(f"{k},{k * k % 17},{(3 * k + k * k) % 29}" for k in range(60))]
    (tmp_path / "tables" / "site-1.csv").write_text("\n".join(lines), encoding="utf-8")
    draft = run(programs / "fedbnsl", "data", "dictionary", "tables/site-1.csv", "--public-data")
    assert "wrote dictionary.toml: read every entry" in draft
    assert (tmp_path / "dictionary.toml").is_file()
    if distribution == "fedbnsl-site":
        split = [programs / "fedbnsl", "data", "split", "tables/site-1.csv", "--out", "parts"]
        refused = subprocess.run(split, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert "'data split' is a command of fedbnsl\n" in refused.stderr
        run(programs / "fedbnsl", "participant", "init", "north", "--site", "north", "--dataset", "study",
            "--data", "tables/site-1.csv", "--coordinator", "127.0.0.1:9", "--max-epsilon", "5")  # fmt: skip
    if distribution == "fedbnsl-research":
        run(programs / "fedbnsl", "data", "synth", "--out", "made", "--nodes", "4", "--edges", "4", "--rows", "50")
        assert "figure" in run(programs / "fedbnsl", "reproduce", "--help")
    if distribution != "fedbnsl":
        return
    (tmp_path / "tables" / "site-2.csv").write_text("\n".join(lines), encoding="utf-8")
    run(programs / "fedbnsl", "simulate", "lean", "--data", "tables", "--out", "run", "--set", "rounds=2")
    run(programs / "fedbnsl", "report", "run")
    assert (tmp_path / "run" / "report.html").is_file()
