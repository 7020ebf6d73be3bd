"""Every command line in README.md and docs/ names a command and options that exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fedbnsl.cli import fedbnsl

_ROOT = Path(__file__).parents[2]
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"```(?:sh|console|ini)\n(.*?)```", re.DOTALL)
_INLINE = re.compile(r"`(fedbnsl [^`|]+)`")


def command_lines(page: str) -> Iterator[str]:
    for block in _BLOCK.findall(page):
        for line in block.splitlines():
            command, _, _ = line.partition("#")
            if (start := command.find("fedbnsl ")) >= 0:
                yield command[start:]
    yield from _INLINE.findall(page)


def unknown(line: str) -> str | None:
    """The first word that no command knows; placeholders in capitals stand for names."""
    words = shlex.split(line)[1:]
    command: click.Command = fedbnsl
    # With the settings of the root: a command keeps the help option of the first context that asks for it.
    context = click.Context(command, **command.context_settings)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name.isupper() or name == "...":
            return None
        found = command.get_command(context, name)
        if found is None:
            return name
        command, context = found, click.Context(found, parent=context)
    options = {option for parameter in command.get_params(context) for option in parameter.opts} | {"--debug"}
    return next((word for word in words if word.startswith("--") and word.partition("=")[0] not in options), None)


@pytest.mark.parametrize("page", _PAGES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_a_page_names_only_commands_and_options_that_exist(page: Path) -> None:
    assert [line for line in command_lines(page.read_text(encoding="utf-8")) if unknown(line)] == []


def test_an_unknown_command_or_option_is_found() -> None:
    assert unknown("fedbnsl participant jion HOST") == "jion"
    assert unknown("fedbnsl simulate lean --date data") == "--date"
    assert unknown("fedbnsl simulate lean --data data --out=runs/1") is None
    assert list(command_lines("`fedbnsl plan`\n```sh\n$ fedbnsl demo# --x\n```\n")) == ["fedbnsl demo", "fedbnsl plan"]
