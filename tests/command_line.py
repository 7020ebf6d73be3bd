"""A command line run in the process of a test."""

import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from fedbnsl.cli import main


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
