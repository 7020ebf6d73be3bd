"""The commands of the tutorials and of the worked examples are run as they stand, and print what the pages say.

Every ```console block is one shell, in one folder a page. A line of expected output must appear, in order; `...` in it
stands for any text. A block under the comment `another terminal` runs beside those that follow it. A ```toml block that
begins with a file's name in a comment is that file.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from free_port import free_port
from waiting import until

_DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"(<!-- another terminal -->\n+)?```console\n(.*?)```", re.DOTALL)
_FILE = re.compile(r"```toml\n# (\S+)\n(.*?)```", re.DOTALL)


class Block(NamedTuple):
    commands: list[str]
    expected: list[str]
    beside: bool


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    for beside, text in _BLOCK.findall(page):
        lines = text.strip().splitlines()
        commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found.append(Block(commands, [line for line in lines if not line.startswith("$ ")], bool(beside)))
    return found


def missing(expected: list[str], output: str) -> str | None:
    """The first expected line that does not follow the ones before it."""
    printed = (" ".join(line.split()) for line in output.splitlines())
    for line in expected:
        pattern = r"\s*.*\s*".join(re.escape(" ".join(part.split())) for part in line.split("..."))
        if not any(re.fullmatch(pattern, candidate) for candidate in printed):
            return line
    return None


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    ["first-page.md", "three-sites.md", "with-privacy.md", "hospitals.md", "three-hospitals.md", "both-views.md"],
)
def test_a_tutorial_prints_what_it_says(page: str, tmp_path: Path) -> None:
    for name in ("cohort.csv", "make_three_hospitals.py"):
        shutil.copy(_DOCS / "tutorial" / name, tmp_path)
    run_page(_DOCS / "tutorial" / page, tmp_path)


def test_the_clinical_table_gives_what_its_page_says(tmp_path: Path) -> None:
    run_page(_DOCS / "how-to" / "a-clinical-table.md", tmp_path)


def test_several_operators_do_what_their_page_says(tmp_path: Path) -> None:
    run_page(_DOCS / "how-to" / "several-operators.md", tmp_path)


def test_the_page_for_the_privacy_board_has_the_numbers_of_its_commands(tmp_path: Path) -> None:
    run_page(_DOCS / "explanation" / "for-the-privacy-board.md", tmp_path)


def test_the_small_clinical_table_gives_what_its_page_says(tmp_path: Path) -> None:
    table = Path(os.environ.get("FEDBNSL_DATA", "")) / "real" / "cf.csv"
    if not table.exists():
        pytest.skip("needs a published table: set FEDBNSL_DATA to a folder that holds real/cf.csv")
    shutil.copy(table, tmp_path)
    run_page(_DOCS / "how-to" / "a-small-clinical-table.md", tmp_path)


def run_page(page: Path, tmp_path: Path) -> None:
    web = free_port()
    text = page.read_text(encoding="utf-8").replace("50051", str(free_port())).replace("8443", str(web))
    for name, content in _FILE.findall(text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
        "LANG": "C.UTF-8",
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    shells: list[tuple[Block, subprocess.Popen[str]]] = []
    try:
        for block in blocks(text):
            shell = subprocess.Popen(
                ["bash", "-euc", "\n".join(block.commands)],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            shells.append((block, shell))
            if not block.beside:
                check(block, shell)
                shells.pop()
            elif is_service(block):
                until(lambda: is_open(web), "the page is served")
        for block, shell in shells:
            if is_service(block):
                shell.terminate()
            check(block, shell)
    finally:
        for _, shell in shells:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)


def is_service(block: Block) -> bool:
    """Whether a block goes on until it is ended."""
    return "runs serve" in block.commands[-1]


def is_open(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def check(block: Block, shell: subprocess.Popen[str]) -> None:
    output, _ = shell.communicate(timeout=600)
    assert shell.returncode == 0, output
    assert missing(block.expected, output) is None, output


def test_the_invented_table_is_the_one_that_its_script_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, _DOCS / "tutorial" / "make_cohort.py"], cwd=tmp_path, check=True)

    assert (tmp_path / "cohort.csv").read_bytes() == (_DOCS / "tutorial" / "cohort.csv").read_bytes()


def test_an_expected_line_must_come_after_the_ones_before_it() -> None:
    assert missing(["a ... c", "d"], "x\na b c\nd\n") is None
    assert missing(["d", "a ... c"], "a b c\nd\n") == "a ... c"
    assert missing(["a"], "a b\n") == "a"
