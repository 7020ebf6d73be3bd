"""How well the learned network describes a site's own rows: the sums that it sends, or keeps.

With a rule `least_cell`, nothing is told of a variable that, with its parents, has a combination of levels or gaps of
fewer rows, or a curve with fewer between two points at which it turns. Counts by probability are left out where one of
them is smaller, also one that others tell by subtraction: so they are told with the site's own means alone, since with
common ones the same rows fall into bins that lie a little beside these.
"""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.errors import RemoteProtocolError, ResultError
from fedbnsl.files import durable
from fedbnsl.network import NETWORK
from fedbnsl.network.families import Count, Family, Grade, Number
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.network.scores_in_words import in_one_line
from fedbnsl.network.sums import N_BINS, Both, Sums
from fedbnsl.network.validation import both_of, levels_of, nothing
from fedbnsl.network.validation_scores import scores_of_both
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.mapped_array import RowsElsewhere
from fedbnsl_client.data.outlying import some_values
from fedbnsl_client.data.small_cells import has_small_cell

VALIDATION = "validation.json"
VALIDATION_SCHEMA = "fedbnsl.validation/1"


def network_that_fits(text: str, mask: EdgeMask) -> FittedNetwork:
    """The network, between columns of a run and along edges that its plan allows.

    Raises ResultError if it is not.
    """
    network = FittedNetwork.from_json(text)
    own, told = (_variable_of_column(one) for one in (mask.columns, network.columns))
    if not told.items() <= own.items():
        raise ResultError("the network has columns that the run does not have")
    places = _places(network, mask.columns)
    for name, family in network.network.families.items():
        if not mask.allowed[np.ix_(places[family.parents], places[family.columns])].all():
            raise ResultError(f"the network has an edge into {name!r} that the plan does not allow")
    return network


def scored_rows(
    network: FittedNetwork, X: Matrix | RowsElsewhere, columns: Columns, dictionary: Dictionary, *, least_cell: int = 0
) -> dict[str, Both]:
    """The sums of each variable over the (n, d) rows of a site; of a large table over 100,000 to 200,000 of them.

    Parameters
    ----------
    columns
        The d columns of the rows; the network may lack some.
    """
    places, rows = _places(network, columns), some_values(X)
    found = both_of(network.network, rows[:, places], network.means)
    if least_cell < 2:
        return found
    told = dict[str, Both]()
    for name, family in network.network.families.items():
        variables: list[int] = np.unique(columns.variable_of[places[[*family.columns, *family.parents]]]).tolist()
        small = has_small_cell(rows, columns, dictionary, variables, least_cell)
        small = small or _few_along_a_curve(family, rows[:, places], least_cell)
        common, own = (nothing(family) if small else one for one in found[name])
        moved = not (np.array_equal(common.counts, own.counts) and np.array_equal(common.numbers, own.numbers))
        told[name] = Both(_withheld(common, family, least_cell, all_bins=moved), _withheld(own, family, least_cell))
    return told


def keep_scores(out: Path, text: str, X: Matrix | RowsElsewhere, columns: Columns, plan: Plan) -> str:
    """Write network.json, the network of a run, and validation.json: its scores on the (n, d) rows of the site itself.

    Nothing is sent.

    Returns
    -------
    line
        Numbers of the table, for the person at the keyboard.

    Raises
    ------
    RemoteProtocolError
        If the coordinator has sent no network of the run.
    ResultError
        If the file cannot be written.
    """
    try:
        network = network_that_fits(text, plan.edge_mask(columns.names))
    except ResultError as error:
        raise RemoteProtocolError(f"the network at the end of the run cannot be scored: {error}") from None
    durable.write_text(out / NETWORK, text)
    try:
        sums = scored_rows(network, X, columns, plan.dictionary)
    except (ValueError, ArithmeticError):
        raise RemoteProtocolError(
            "the network at the end of the run has numbers with which no row can be scored"
        ) from None
    content: dict[str, Any] = {
        "schema": VALIDATION_SCHEMA,
        "network": sha256(text.encode()).hexdigest(),
        "variables": {
            name: scores_of_both(network.network.families[name], [sums[name]], network.centre(name))
            for name in network.variables
        },
    }
    durable.write_text(out / VALIDATION, json.dumps(content, ensure_ascii=False) + "\n", mode=durable.OWNER_ONLY)
    children = {name for name, family in network.network.families.items() if family.parents.size}
    described = in_one_line(content["variables"], children)
    return f"how the network describes the rows here: {described}"


def _variable_of_column(columns: Columns) -> dict[str, str]:
    of: list[int] = columns.variable_of.tolist()
    return {name: columns.variables[v] for name, v in zip(columns.names, of, strict=True)}


def _places(network: FittedNetwork, columns: Columns) -> Index:
    at = {name: k for k, name in enumerate(columns.names)}
    return np.array([at[name] for name in network.columns.names], dtype=np.int64)


def _withheld(sums: Sums, family: Family, least_cell: int, *, all_bins: bool = False) -> Sums:
    """The sums without counts of fewer rows, or without any count by probability."""
    counts, numbers = sums.counts.copy(), sums.numbers.copy()
    if not (K := levels_of(family)):
        within, pit = int(counts[0]), numbers[3 : 3 + N_BINS]
        beside = within - round(float(pit[1:-1].sum()), 6)  # between the ends of the interval and of the bins
        if all_bins or _has_small([within, sums.rows - within, beside, *pit.tolist()], least_cell):
            counts[0], pit[:] = 0, 0.0
        return replace(sums, counts=counts, numbers=numbers)
    forecasts, hits, scores = counts[K : K + N_BINS], counts[K + N_BINS : K + 2 * N_BINS], counts[K + 2 * N_BINS :]
    if all_bins or _has_small([*forecasts.tolist(), *hits.tolist(), *(forecasts - hits).tolist()], least_cell):
        forecasts[:], hits[:], numbers[:] = 0, 0, 0.0
    if all_bins or _has_small(scores.tolist(), least_cell):
        scores[:] = 0
    return replace(sums, counts=counts, numbers=numbers)


def _few_along_a_curve(family: Family, rows: Matrix, least_cell: int) -> bool:
    """Whether few rows lie between two points at which a curve turns: a sum could tell of them alone."""
    used = rows[~np.isnan(rows[:, [*family.columns, *family.parents]]).any(axis=1)]
    for bend in family.bends if isinstance(family, Count | Grade | Number) else ():
        turns: Matrix = bend.at[1:-1]  # beyond the first and the last, lines go on
        n: list[float] = np.bincount(np.searchsorted(turns, used[:, bend.parent])).tolist()
        if _has_small(n, least_cell):
            return True
    return False


def _has_small(counts: list[float], least_cell: int) -> bool:
    return any(0 < n < least_cell for n in counts)
