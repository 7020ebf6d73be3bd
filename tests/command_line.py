"""A command line run in the process of a test."""

from dataclasses import dataclass

import pytest

from fedbnsl.cli import main


@dataclass
class Outcome:
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
