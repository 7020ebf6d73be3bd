"""The units of deploy/systemd, as files: confined, and with the ledger apart from the note of how far it has come."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from fedbnsl_client.agent.cli import agent as command

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))

each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)


def settings(unit: Path) -> dict[str, list[str]]:
    """The settings of all sections, in the order of the file; continued lines are joined."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_there_is_a_unit_of_either_side() -> None:
    assert [unit.name for unit in UNITS] == ["fedbnsl-agent@.service", "fedbnsl-coordinator.service"]


@each_unit
def test_systemd_counts_a_service_as_well_confined(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze, of systemd")
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=15", unit]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("needs systemd 250 or newer")
    assert done.returncode == 0, done.stdout + done.stderr


@each_unit
def test_a_failing_service_is_started_again_but_not_for_ever_and_not_for_what_a_start_cannot_mend(unit: Path) -> None:
    found = settings(unit)
    assert found["Restart"] == ["on-failure"]
    assert int(found["StartLimitBurst"][0]) < 100
    never = {int(code) for code in found["RestartPreventExitStatus"][0].split()}
    assert never >= {2, 3, 4, 14}
    assert not never & {1, 6, 9}  # a bug, a coordinator that does not answer, a full disk: these may pass


def test_the_ledger_and_the_note_of_how_far_it_has_come_are_in_different_trees() -> None:
    [unit] = [unit for unit in UNITS if "agent" in unit.name]
    found = settings(unit)
    [state] = [value.split("=", 1)[1] for value in found["Environment"] if value.startswith("XDG_STATE_HOME=")]
    site = found["WorkingDirectory"][0]
    assert PurePosixPath(site).parts[:4] != PurePosixPath(state).parts[:4]
    assert found["BindPaths"] == [f"{site} {state}"]


def test_the_agent_of_another_federation_is_the_same_unit_with_options_of_its_own(tmp_path: Path) -> None:
    """By the commands of the page, which write below another root here."""
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    found = re.search(r"A site in several federations.*?```sh\n(.*?)```", page, re.DOTALL)
    assert found is not None
    for folder in ("etc/systemd/system", "etc/fedbnsl"):
        (tmp_path / folder).mkdir(parents=True)
    commands = [line for line in found[1].splitlines() if not line.startswith("systemctl")]
    there = "\n".join(commands).replace("/etc/", f"{tmp_path}/etc/")
    subprocess.run(["sh", "-euc", there], cwd=ROOT, check=True)
    unit = tmp_path / "etc/systemd/system/fedbnsl-agent-lung@.service"
    [agent] = [unit for unit in UNITS if "agent" in unit.name]
    assert unit.read_bytes() == agent.read_bytes()
    [dropin] = Path(f"{unit}.d").iterdir()
    # Emptied first: the options of the first one's agent, such as the port of its metrics, are not for this one.
    named = ["", f"{tmp_path}/etc/fedbnsl/site-%i-lung.env"]
    assert settings(dropin) == {"EnvironmentFile": named}, "required: without it this would be the first one's agent"
    [options] = settings(Path(named[1].replace("%i", "north")))["FEDBNSL_OPTIONS"]
    start = shlex.split(settings(unit)["ExecStart"][0].replace("$FEDBNSL_OPTIONS", options.strip('"')))
    words = [str(tmp_path) if word.endswith("/%i") else word for word in start[start.index("agent") + 1 :]]
    assert command.make_context("agent", words, resilient_parsing=True).params["federation"] == "lung"


@each_unit
def test_no_secret_is_in_a_unit_or_in_an_example_of_its_options(unit: Path) -> None:
    texts = [file.read_text(encoding="utf-8") for file in unit.parent.iterdir()]
    assert not [text for text in texts if "passphrase=" in text.lower() or "token=" in text.lower()]
