"""What a network says, as data frames. pandas is no dependency: without it, each says where else the same stands."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbnsl.errors import SetupError
from fedbnsl.network.predictions import Predictions
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.results.result_schema import Edge, HiddenCauses

if TYPE_CHECKING:
    import pandas as pd


def pandas_or(otherwise: str) -> Any:
    """The module pandas.

    Raises SetupError, whose remedy ends with `otherwise`, if it is not installed.
    """
    try:
        import pandas  # here: no extra of fedbnsl brings it along
    except ImportError:
        raise SetupError(
            "a data frame needs pandas, which is not installed", remedy=f"pip install pandas; {otherwise}."
        ) from None
    return pandas


def edges_of(result: Mapping[str, Any]) -> "pd.DataFrame":
    """A row for each edge of result.json; see `Network.edges`."""
    edges = [Edge.model_validate(one) for one in result["edges"]]
    shares = [one.bootstrap for one in edges]
    rows: dict[str, list[Any]] = {
        "source": [one.source for one in edges],
        "target": [one.target for one in edges],
        "directed": [one.directed for one in edges],
        "directed_by": [one.directed_by for one in edges],
        "weight": [_number(one.weight) for one in edges],
        "low": [_end(one.interval, 0) for one in edges],
        "high": [_end(one.interval, 1) for one in edges],
        "source_level": [one.source_level for one in edges],
        "target_level": [one.target_level for one in edges],
        "standardised": [_number(one.standardised) for one in edges],
        "share": [math.nan if one is None else one.adjacent for one in shares],
        "share_forward": [math.nan if one is None else one.forward for one in shares],
        "share_backward": [math.nan if one is None else one.backward for one in shares],
    }
    frame: pd.DataFrame = pandas_or('``result["edges"]`` has the same').DataFrame(rows)
    return frame


def links_of(told: Mapping[str, Any]) -> "pd.DataFrame":
    """A row for each link of `hidden_causes` of result.json; see `Network.hidden_causes`."""
    links = HiddenCauses.model_validate(told).links
    rows: dict[str, list[Any]] = {
        name: [getattr(one, name) for one in links]
        for name in ("source", "marks", "target", "mark_source", "mark_target", "says")
    }
    shares = {"linked": "adjacent", "same_source": "mark_source", "same_target": "mark_target"}
    for name, key in {**shares, "hidden_cause": "hidden_cause"}.items():
        rows[name] = [math.nan if one.bootstrap is None else getattr(one.bootstrap, key) for one in links]
    frame: pd.DataFrame = pandas_or('``result["hidden_causes"]`` has the same').DataFrame(rows)
    return frame


def changes_of(told: Mapping[str, Any]) -> "pd.DataFrame":
    """A row for each pair of variables of `differences`; what else it tells is in `attrs`."""
    rows: dict[str, list[Any]] = {key: [one[key] for one in told["edges"]] for key in ("what", "source", "target")}
    for run in ("first", "second"):
        rows[run] = [one[run]["edge"] for one in told["edges"]]
        rows[f"{run}_share"] = [_number(one[run]["share"]) for one in told["edges"]]
    frame: pd.DataFrame = pandas_or("`fedbnsl network diff --json` has the same").DataFrame(rows)
    frame.attrs.update({key: value for key, value in told.items() if key != "edges"})
    return frame


def predictions_of(found: Predictions, index: Any) -> "pd.DataFrame":
    """A row for each row that was predicted: `predicted`, `low` and `high`, or a column for each level."""
    names = list(found.levels) or ["predicted", "low", "high"]
    numbers: Matrix = found.probabilities if found.levels else np.column_stack([found.mean, found.low, found.high])
    columns = {name: numbers[:, k] for k, name in enumerate(names)}
    frame: pd.DataFrame = pandas_or("`fedbnsl network predict` reads and writes CSV without it").DataFrame(
        columns, index=index
    )
    return frame


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _end(interval: Any, k: int) -> float:
    return math.nan if interval is None else float(interval[k])
