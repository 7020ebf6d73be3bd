"""Reference pages from the code: a line `<!-- generated: NAME -->` of a page becomes the text of that name.

The lines under it, up to an empty one, are for who reads the page without a build, and go.

So commands, settings, ready plans and exit codes cannot differ from what the program does.
"""

import re
import types
from collections.abc import Callable, Iterator
from typing import Any, Union, get_args, get_origin

import click
from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from fedbnsl.cli import fedbnsl
from fedbnsl.errors import FedbnslError
from fedbnsl.plan.dictionary import Entry
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Unit
from fedbnsl.plan.ready_files import READY_PLANS
from fedbnsl_client.data.reading import SiteColumn

_MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$(?:\n.+)*", re.MULTILINE)
_KINDS = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false"}
_BOUNDS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True}


def _insert(app: Sphinx, page: str, source: list[str]) -> None:
    texts: dict[str, Callable[[], Iterator[str]]] = {
        "commands": _commands,
        "exit-codes": _exit_codes,
        "settings": _settings,
        "ready-plans": _ready_plans,
        "dictionary-entry": lambda: _model(Entry, ""),
        "site-column": lambda: _model(SiteColumn, ""),
    }
    source[0] = _MARK.sub(lambda found: "\n".join(texts[found[1]]()), source[0])


def _plain(text: str) -> str:
    """Text in which only what stands between backticks is markup."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<>\[\]|])", r"\\\1", part) for part in parts)


# Commands


def _commands() -> Iterator[str]:
    root = click.Context(fedbnsl, info_name="fedbnsl")
    for name in fedbnsl.list_commands(root):
        yield from _command(_found(fedbnsl, root, name), root, level=2)


def _found(group: click.Group, context: click.Context, name: str) -> click.Command:
    command = group.get_command(context, name)
    if command is None:
        raise ExtensionError(f"the command {name!r} is listed but cannot be loaded")
    return command


def _command(command: click.Command, parent: click.Context, *, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=command.name, parent=parent)
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"\n{'#' * level} {context.command_path}\n"
    yield from _paragraphs(command.help or "")
    if not isinstance(command, click.Group):
        yield f"```text\n{context.command_path} {pieces}\n```\n"
    for parameter in command.get_params(context):
        record = None if "--help" in parameter.opts else parameter.get_help_record(context)
        if record is not None and record[1]:
            yield f"`{record[0]}`\n: {_plain(record[1])}\n"
    yield from _paragraphs(command.epilog or "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _command(_found(command, context, name), context, level=level + 1)


def _paragraphs(help_text: str) -> Iterator[str]:
    """Paragraphs of a help text; click leaves the lines of one as they are after a line with a backspace."""
    for paragraph in re.split(r"\n\s*\n", help_text.strip()):
        if paragraph.startswith("\b\n"):
            yield f"```text\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```\n"
        else:
            yield _plain(paragraph) + "\n"


# Exit codes


def _exit_codes() -> Iterator[str]:
    yield "| code | what | what to do |\n|---|---|---|"
    yield "| 0 | Done. | |"
    found: dict[int, list[type[FedbnslError]]] = {}
    for error in _kinds_of(FedbnslError):
        found.setdefault(error.exit_code, []).append(error)
    for code, errors in sorted(found.items()):
        for error in errors:
            if error is errors[0] or error.remedy != errors[0].remedy:
                what = (error.__doc__ or "").partition("\n")[0] if code != 1 else "An unexpected error."
                yield f"| {code} | {_plain(what)} | {_plain(error.remedy)} |"


def _kinds_of(error: type[FedbnslError]) -> Iterator[type[FedbnslError]]:
    yield error
    for kind in error.__subclasses__():
        yield from _kinds_of(kind)


# Settings of a plan


def _settings() -> Iterator[str]:
    yield from _model(Plan, "")


def _model(model: type[BaseModel], table: str) -> Iterator[str]:
    inner: dict[str, type[BaseModel]] = {}
    for name, field in model.model_fields.items():
        if (nested := _nested(field.annotation)) is not None:
            inner[name] = nested
        default = "" if field.is_required() else f", default `{_shown(field.get_default(call_default_factory=True))}`"
        yield f"`{table}{name}`\n: {_plain(field.description or '')}  \n  *{_plain(_kind(field))}{default}*\n"
    for name, nested in inner.items():
        settings: type[BaseModel] | None = nested
        if issubclass(nested, RootModel):  # its names are free: of tables, or of values that its text explains
            settings = _nested(nested.model_fields["root"].annotation)
            name, nested = (f"{name}.VARIABLE", settings) if settings else (name, nested)
        yield f"\n## [{name}]\n"
        yield from _paragraphs((nested.__doc__ or "").partition("Examples\n")[0])
        if settings is not None:
            yield from _model(settings, "" if table else f"{name}.")


def _nested(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_nested, get_args(annotation))), None)


def _kind(field: FieldInfo) -> str:
    """Type, unit and range in words."""
    if (nested := _nested(field.annotation)) is not None:
        return "table" if get_origin(field.annotation) is not tuple else f"tables of {', '.join(nested.model_fields)}"
    bounds = [
        rule.format(f"{limit:g}" if isinstance(limit, float) else limit)
        for constraint in field.metadata
        for name, rule in _BOUNDS.items()
        if (limit := getattr(constraint, name, None)) is not None
    ]
    units = [f"in {entry.name}" for entry in field.metadata if isinstance(entry, Unit)]
    return ", ".join([_type_in_words(field.annotation), *units, *bounds])


def _type_in_words(annotation: Any) -> str:
    arguments = [argument for argument in get_args(annotation) if argument not in (type(None), Ellipsis)]
    if get_origin(annotation) in (Union, types.UnionType):
        return _type_in_words(arguments[0])
    if get_origin(annotation) in (tuple, dict):
        return "list" if get_origin(annotation) is tuple else "table"
    if arguments and all(isinstance(argument, str) for argument in arguments):
        return " or ".join(f"`{argument}`" for argument in arguments)
    return _KINDS.get(getattr(annotation, "__name__", ""), _KINDS["float"])


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel) or value is None or value in ((), "", {}):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


# Ready plans


def _ready_plans() -> Iterator[str]:
    for name in READY_PLANS.names():
        private = "" if Plan.load(name).privacy is None else " (with differential privacy)"
        yield f"`{name}`{private}\n: {_plain(READY_PLANS.about(name))}\n"
    for name in READY_PLANS.names():
        text = READY_PLANS.file(name).read_text(encoding="utf-8").strip()
        yield f"\n## {name}\n\n```toml\n{text}\n```\n"
