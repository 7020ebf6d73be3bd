"""What is wrong with the settings of a file, a line each: the setting, its value and the rule that it breaks."""

import difflib
from collections.abc import Iterator, Mapping

from pydantic import BaseModel, ValidationError

from fedbnsl.console.shown import shown
from fedbnsl.files.toml_text import in_toml_words


def explain(
    error: ValidationError,
    model: type[BaseModel],
    tables: Mapping[str, type[BaseModel]] | None = None,
    gone: Mapping[str, tuple[object, str]] | None = None,
) -> Iterator[str]:
    """The problems that pydantic found, in the words of TOML.

    `model` has the settings of the file, but for its `tables`; `gone` says of those of earlier versions what they now
    always are, and what to do about another value.
    """
    tables, gone = tables or {}, gone or {}
    for problem in error.errors():
        # A file may come over the wire, with names and values of any length.
        where, value = shown(".".join(map(str, problem["loc"])), 100), shown(repr(problem["input"]), 300)
        text = in_toml_words(problem["msg"])
        if problem["type"] == "extra_forbidden" and where in gone:
            yield f"  setting {where} is gone: {gone[where][1]}"
        elif problem["type"] == "extra_forbidden":
            place, last = [str(part) for part in problem["loc"][:-1]], str(problem["loc"][-1])
            known = tables.get(place[0], model) if place else model
            near: list[str] = difflib.get_close_matches(last[:100], known.model_fields, n=1)
            if not place and not near:
                near = [f"{name}.{last}" for name, one in tables.items() if last in one.model_fields]
            known_here = f"; there are {', '.join(known.model_fields)}" if place else ""
            yield f"  {where} = {value}: no such setting{f'; did you mean {near[0]}?' if near else known_here}"
        elif problem["type"] == "value_error" and isinstance(problem["input"], Mapping):
            # A rule between settings names them itself.
            yield f"  {where}.{text}" if where else f"  {text}"
        elif problem["loc"][-1:] == ("[key]",):  # a name of a table, which is the value
            yield f"  {where.removesuffix('.[key]')}: {text}"
        else:
            yield f"  {where} = {value}: {text}"
