"""Read result.json of a run folder: that it is one, and the graph that it holds."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from pydantic import ValidationError

from fedbnsl.console.wording import first_few
from fedbnsl.errors import ResultError
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Mask
from fedbnsl_server.results.result_schema import Result

SCHEMA = "fedbnsl.result/1"


def read_result(run: Path) -> dict[str, Any]:
    """The content of a run folder's result.json; what an older version did not write has the default of the schema.

    Raises ResultError if there is none, it is not what a run writes (`result_schema`), or it has no graph.
    """
    path = run / "result.json"
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise _no_result(run) from None
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} cannot be read: {error}") from error
    result = cast(dict[str, Any], content) if isinstance(content, dict) else {}
    if result.get("schema") != SCHEMA:
        raise ResultError(f"{path} has the format {result.get('schema')!r}; expected {SCHEMA!r}")
    try:
        result = with_defaults(result)
    except ValidationError as error:
        places = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}".lstrip(": ") for one in error.errors())
        raise ResultError(
            f"{path} is damaged: {first_few(places, 3)}",
            remedy="Take the file as the run wrote it, or a copy of it; a changed one is not shown.",
        ) from None
    if not result["rounds"]:
        raise ResultError(
            f"the run in {run} ended before its first round: {result['reason']}",
            remedy="There is nothing to show or to score: continue the run, or start another one.",
        )
    return result


def with_defaults(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result with what an older version did not write. Raises ValidationError if it is not what a run writes."""
    return Result.model_validate(result).model_dump(by_alias=True)


def _no_result(run: Path) -> ResultError:
    if not (run / "plan.toml").exists():
        return ResultError(f"{run} is no run folder with a result: it has no result.json", remedy="Check the path.")
    text = f"the run in {run} has not ended: it has no result.json"
    if (run / "run.json").exists():  # a coordinator's, which can be continued
        remedy = (
            "If its coordinator is running, wait for its end, or end it with Ctrl-C, which writes what was learned so "
            "far. If it was killed, continue the run with the same command."
        )
    else:
        remedy = (
            "If it is running, wait for its end. If it was killed, start it again with another --out (in Python, out=)."
        )
    return ResultError(text, remedy=remedy)


def learned_graph(result: Mapping[str, Any]) -> Mask:
    """(V, V) DAG of a result, between its variables; of a class, the one whose weights the result has."""
    return _edges(result, lambda edge: True)


def learned_class(result: Mapping[str, Any]) -> Mask:
    """(V, V) the class of a result: [i, j] for i -> j, both [i, j] and [j, i] for an edge that it leaves open."""
    open_edges = _edges(result, lambda edge: not edge["directed"] and not _is_undecided(edge))
    return learned_graph(result) | open_edges.T


def undecided_edges(result: Mapping[str, Any]) -> Mask:
    """(V, V) arrows of the class that are shown without a direction: too few bootstrap draws agree with them."""
    return _edges(result, _is_undecided)


def _is_undecided(edge: Mapping[str, Any]) -> bool:
    return bool(edge["directed_by"] == "undecided")


def _edges(result: Mapping[str, Any], holds: Callable[[Mapping[str, Any]], bool]) -> Mask:
    position = {name: k for k, name in enumerate(result["variables"])}
    found = np.zeros((len(position), len(position)), dtype=bool)
    for edge in result["edges"]:
        found[position[edge["source"]], position[edge["target"]]] = holds(edge)
    return found


def columns_of(result: Mapping[str, Any]) -> Columns:
    """The columns of weights.csv and lgbn.json, and the variables of the graph that they belong to."""
    owners: Mapping[str, str] | None = result.get("columns")  # none where each variable is one column
    return Columns.of(list(owners or result["variables"]), owners)
