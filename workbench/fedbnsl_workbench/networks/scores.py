"""How well a network describes rows: scores of a run, of one site, or of a table, and how they are shown."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.network.scores_in_words import in_one_line as words
from fedbnsl.protocol.sparse import Matrix

if TYPE_CHECKING:
    from rich.table import Table

    from fedbnsl.network.fitted_network import FittedNetwork

HEADS = ("variable", "rows", "predicted", "left out", "as told", "gain", "own fit", "common means")
_PREDICTED = "predicted: R^2 of numbers, after their transform, and of two levels the area under the ROC curve (AUC)"
_LEFT_OUT = (
    "left out: R^2 at each site of numbers that the other sites alone have given, along the same graph (straight "
    "lines, at sites that have most values)"
)
_OTHERS = (
    "as told: values within their 95 % interval, or how far probabilities of levels are off the shares that came true; "
    "gain: log-likelihood a row, in nats, above that of each variable by itself; own fit: what the same parents, "
    "fitted to these rows, gain beyond that. All of these are with the means of {whose}; common means: predicted, with "
    "the means of all sites"
)


def meaning(told: Mapping[str, Any]) -> str:
    """What the columns of `table_of` say, of scores of a run, a site or a table."""
    left_out = [_LEFT_OUT] * any(map(_left_out, told["variables"].values()))
    whose = "the table's own rows" if "table" in told else "each site"
    return "; ".join([_PREDICTED, *left_out, _OTHERS.format(whose=whose)])


def scores_of_run(result: Mapping[str, Any], validation: str) -> dict[str, Any]:
    """The scores that the sites of a run have told.

    Parameters
    ----------
    validation
        The plan's setting.

    Raises
    ------
    ResultError
        If the run has none, with how to get them.
    """
    if (told := result["validation"]) is not None:
        return dict(told)
    again = "Run it again with --set validation=sums; or score the network on rows of your own: give TABLE."
    if validation == "at_site":
        raise ResultError(
            "the sites of this run have scored its network on their own: nothing of it was sent",
            remedy="Each site finds its scores in validation.json, beside its edges.csv (participant join --out). On "
            "rows of your own: give TABLE.",
        )
    if validation == "sums":
        raise ResultError(
            f"the run has no scores: it was {result['state']} before its last round, or its network has no numbers for "
            "rows (network ask says why)",
            remedy="A run needs tell_means=true, and sites without a rule least_cell that withholds means.",
        )
    raise ResultError("the run did not score its network: its plan has validation = 'none'", remedy=again)


def scores_of_site(path: Path) -> dict[str, Any]:
    """The scores of a site's validation.json. Raises ResultError if it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != "fedbnsl.validation/1":
            raise ValueError(f"the format {content['schema']!r}")
        table_of(content["variables"])  # all that is shown is there
        return dict(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultError(f"{path} cannot be read as scores of a network: {error}") from None


def scores_of_rows(fitted: "FittedNetwork", X: Matrix) -> dict[str, Any]:
    """The scores of (n, d) rows in the columns of the network, NaN where a value is missing.

    Raises SetupError if no row has a variable and its parents.
    """
    from fedbnsl.network.validation import both_of  # here: both load SciPy
    from fedbnsl.network.validation_scores import scores_of_both

    sums = both_of(fitted.network, X, fitted.means)
    if not any(one.common_means.rows for one in sums.values()):
        raise SetupError(
            "no row of the table has a variable of the network and all of its parents",
            remedy="Are columns missing? `fedbnsl network show` names them, or the run's edges.csv.",
        )
    families = fitted.network.families
    return {"variables": {name: scores_of_both(families[name], [sums[name]], fitted.centre(name)) for name in families}}


def in_one_line(result: Mapping[str, Any]) -> str:
    """How well the network describes variables that have parents; empty: the run has no scores."""
    if result["validation"] is None:
        return ""
    children = {edge["target"] for edge in result["edges"]}
    return (
        f"{words(result['validation']['variables'], children)}, with the means of each site (fedbnsl network validate)"
    )


def table_of(variables: Mapping[str, Any]) -> "Table":
    """A row for each variable; without the columns that have nothing."""
    from rich.table import Table
    from rich.text import Text

    rows = [[name, *cells_of(both)] for name, both in variables.items()]
    shown = [k for k in range(len(HEADS)) if any(row[k] for row in rows)]
    table = Table()
    for k in shown:
        table.add_column(HEADS[k], justify="right" if k else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[k]) for k in shown))
    return table


def cells_of(both: Mapping[str, Any]) -> list[str]:
    """Of one variable, in the order of `HEADS`; empty where it is not told."""
    own, common = both["own_means"], both["common_means"]
    gain = _difference(own.get("log_likelihood"), own.get("of_independence"))
    left = _difference(own.get("own"), own.get("log_likelihood"))
    return [f"{own['rows']:,}", _predicted(own), _left_out(both), _as_told(own), gain, left, _predicted(common)]


def _predicted(told: Mapping[str, Any]) -> str:
    if (r2 := told.get("r2")) is not None:
        return f"R^2 {r2:z.2f}"
    return "" if (auc := told.get("auc")) is None else f"AUC {auc:.2f}"


def _left_out(both: Mapping[str, Any]) -> str:
    return "" if (told := both.get("left_out")) is None else f"R^2 {told['r2']:z.2f}"


def _as_told(told: Mapping[str, Any]) -> str:
    if (within := told.get("within")) is not None:
        return f"{100 * within:.0f} %"
    return "" if (error := told.get("calibration_error")) is None else f"{100 * error:.1f} % off"


def _difference(one: float | None, other: float | None) -> str:
    return "" if one is None or other is None else f"{one - other:z.3f}"
