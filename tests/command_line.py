"""A command line run in the process of a test."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedbnsl.cli import main

VARIABLES = "--variables=X1,X2,X3,X4,X5"


class Outcome(NamedTuple):
    """How it ended, and what it said on standard output and standard error."""

    code: int
    out: str
    err: str


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """Run `fedbnsl ARGUMENTS`."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    out, err = capsys.readouterr()
    return Outcome(ended.value.code, out, err)


def run_unread(*arguments: object, stdin: str = "") -> Outcome:
    """Run it as a process of which nobody reads the standard output, as after `| head` has seen enough."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "fedbnsl", *map(str, arguments)]
    try:
        ended = subprocess.run(
            command, input=stdin, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=120
        )
    finally:
        os.close(writer)
    return Outcome(ended.returncode, "", ended.stderr)


def refused(outcome: Outcome, code: int, *said: str) -> None:
    """One error, its words, a remedy, nothing on standard output, and no traceback."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert len(re.findall("^error: ", outcome.err, re.MULTILINE)) == 1
    for words in said:
        assert words in outcome.err
    assert len(outcome.err.strip().splitlines()) >= 2, "a remedy follows"


def strict_json(text: str) -> Any:
    """The content of JSON in which every number is finite."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
