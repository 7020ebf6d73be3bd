"""The numbers of confidence in result.json: of each edge, of pairs that nearly were one, of each variable's fit.

They are computed in units of the run's columns; here they get the units of the tables, as weights have.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph
from fedbnsl_server.inference.bootstrap import MOST_LED
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.inference.heterogeneity import chi_square_tails

# Half the width of a 95 % interval, in standard errors.
_WIDTH = 1.959963984540054
# The least share of the draws that a pair without an edge is named for.
_UNSURE = 0.1

_Pair = tuple[int, int]


def to_no_units(graph: ConsensusGraph, confidence: Confidence | None) -> Matrix | None:
    """(d, d) what a weight in units of the tables is multiplied by to have none; None: the run's columns have units.

    It has none in the columns' scales. Those of a private run are noisy: then it has none in the standard deviations
    that the learned network implies, as total effects have.
    """
    if graph.units is None:
        return None
    size = graph.units.scales
    if confidence is not None and confidence.noise_std:
        size = size * np.sqrt(confidence.variance)
    return np.asarray(size[:, None] / size)


def unidentified(confidence: Confidence | None, graph: ConsensusGraph) -> Mask:
    """(d, d) weights that are not known: withheld, or left open by the moments, as parents are tied to each other."""
    found = graph.withheld.copy()
    if confidence is not None:
        i, j = confidence.edges[np.isnan(confidence.standard_error)].T
        found[i, j] = True
    return found


def sizes(weights: Matrix, to_no_units: Matrix | None, unidentified: Mask | None) -> Matrix:
    """(d, d) by which one coefficient stands for an edge with several: without units, NaN where it is not known."""
    found = np.abs(weights) if to_no_units is None else np.abs(weights * to_no_units)
    return found if unidentified is None else np.where(unidentified, np.nan, found)


def with_confidence(
    edges: Sequence[Mapping[str, Any]], confidence: Confidence | None, graph: ConsensusGraph, columns: Columns
) -> list[dict[str, Any]]:
    """The edges of `named_edges`, each with the numbers of confidence of the coefficient with its weight.

    Null where one is not known, absent without any.
    """
    if confidence is None:
        return [dict(edge) for edge in edges]
    found = _OfPairs(confidence, graph, columns)
    return [found.edge(edge) for edge in edges]


def unsure(confidence: Confidence | None, graph: ConsensusGraph, columns: Columns) -> list[dict[str, Any]]:
    """Pairs of variables without an edge that a tenth of the draws or more have one between, falling by that share."""
    if confidence is None or not confidence.draws:
        return []
    dag = columns.joined(graph.dag)
    rows: list[dict[str, Any]] = []
    for (v, w), counts in zip(confidence.pairs.tolist(), confidence.counts.tolist(), strict=True):
        adjacent, forward, backward = (count / confidence.draws for count in counts[:3])
        if adjacent >= _UNSURE and not dag[v, w] and not dag[w, v]:
            ends: dict[str, Any] = {"source": columns.variables[v], "target": columns.variables[w]}
            rows.append({**ends, "adjacent": adjacent, "forward": forward, "backward": backward})
    return sorted(rows, key=lambda row: -row["adjacent"])


def rarely_drawn(confidence: Confidence | None, columns: Columns) -> list[list[str]]:
    """By name, source first: edges that were taken out, as hardly any draw has them."""
    if confidence is None:
        return []
    return [[columns.variables[v], columns.variables[w]] for v, w in confidence.taken_out.tolist()]


def paths(confidence: Confidence | None, columns: Columns) -> dict[str, dict[str, float]] | None:
    """By source and target: the share of the draws in which a path of directed edges leads there; 0 is left out.

    None where they were not counted: without draws, and of very many variables.
    """
    if confidence is None or not confidence.draws or len(columns.variables) > MOST_LED:
        return None
    found: dict[str, dict[str, float]] = {}
    pairs: list[list[int]] = confidence.leading.tolist()
    for (v, w), count in zip(pairs, confidence.led.tolist(), strict=True):
        found.setdefault(columns.variables[v], {})[columns.variables[w]] = count / confidence.draws
    return found


def fit_of(
    confidence: Confidence | None,
    graph: ConsensusGraph,
    columns: Columns,
    residual_variance: Matrix,
) -> dict[str, dict[str, Any]]:
    """By variable: which share of its variance its parents explain, its intercept, its residual variance.

    Null for a variable with several columns, of which the correlation of their residuals is told instead. The intercept
    is null also where each site has its own, or none.

    (d,) `residual_variance` is in squared units of the tables; empty: not known, NaN: the noise of privacy hides it.
    """
    if confidence is None:
        return {}
    # Noise that hides the residual variances hides what is explained, too: the search then had stand-ins for them.
    if residual_variance.size:
        untold = np.isnan(residual_variance)
    else:
        untold = np.full(len(columns.names), bool(confidence.noise_std))
    found: dict[str, dict[str, Any]] = {}
    for name, own in zip(columns.variables, columns.members(), strict=True):
        c = int(own[0])
        if own.size > 1:
            correlation = None if untold[c] else confidence.residual_correlation[np.ix_(own, own)].tolist()
            found[name] = {
                "r2": None, "intercept": None, "residual_variance": None, "residual_correlation": correlation
            }  # fmt: skip
            continue
        variance = float(confidence.variance[c])
        known = variance > 0.0 and not untold[c]
        r2 = max(1.0 - float(confidence.residual_variance[c]) / variance, 0.0) if known else None
        left = float(residual_variance[c]) if residual_variance.size and not untold[c] else None
        intercept = None
        if graph.units is not None and graph.units.centres.size and not untold[c]:
            centres = graph.units.centres
            intercept = float(centres[c] - graph.weights[:, c] @ centres)
        found[name] = {"r2": r2, "intercept": intercept, "residual_variance": left}
    return found


def estimation_of(confidence: Confidence | None, columns: Columns) -> dict[str, Any] | None:
    """What the numbers of confidence rest on."""
    if confidence is None:
        return None
    widened: dict[str, dict[str, float]] = {}
    few = np.argwhere(np.triu((confidence.widening > 1.0) & np.isfinite(confidence.widening)))
    for i, j in few.tolist():
        widened.setdefault(columns.names[i], {})[columns.names[j]] = float(confidence.widening[i, j])
    return {
        "n_samples": confidence.n_samples,
        "noise_std": confidence.noise_std,
        "draws": confidence.draws,
        "widened": widened,
        **({"dependent_rows": _dependent_rows(confidence, columns)} if confidence.others else {}),
    }


def _dependent_rows(confidence: Confidence, columns: Columns) -> dict[str, Any]:
    """How much rows of a group depend on each other."""
    of_columns, of_residuals = (dict(zip(columns.names, one, strict=True)) for one in confidence.icc.tolist())
    return {
        "other_rows": confidence.others,
        "counted": confidence.counted,
        "icc": of_columns,
        "residual_icc": of_residuals,
    }


def odd_site(
    confidence: Confidence | None, columns: Columns, ratios: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any] | None:
    """What result.json says of the one site without which the others agree; null: there is none.

    Lines count where no test of `ratios`, as result.json has these, takes their place.
    """
    if confidence is None:
        return None
    by_ratios = np.isin(
        columns.variable_of, [columns.variables.index(one["child"]) for one in ratios if one["agreement"]]
    )
    edges: list[list[int]] = confidence.edges.tolist()
    odd_in: list[list[int]] = confidence.odd_in.tolist()
    by_lines = [pair for pair in odd_in if not by_ratios[pair[1:] if pair in edges else pair].any()]
    odd_in_ratios = [one for one in ratios if one["odd_site"]]
    of_ratios = odd_in_ratios[0]["odd_site"] if odd_in_ratios else ""
    site = confidence.odd_site if by_lines or not ratios else of_ratios
    if not site:
        return None
    same = confidence.odd_site == site
    lines = columns.variable_of[np.array(by_lines if same else [], dtype=np.int64).reshape(-1, 2)]
    place = dict(zip(columns.names, columns.variable_of.tolist(), strict=True))
    of_families = [
        [place[told["source"]], place[told["target"]]]
        for one in odd_in_ratios
        for told in one["estimates"]
        if of_ratios == site
    ]
    families = np.array(of_families, dtype=np.int64).reshape(-1, 2)

    def named(pairs: Index) -> list[list[str]]:
        names = {(columns.variables[int(v)], columns.variables[int(w)]): None for v, w in pairs}
        return [list(pair) for pair in names]

    return {
        "site": site,
        "differs_in": named(np.sort(np.concatenate([lines, families]), axis=1)),
        "edges_lost_without": named(confidence.odd_lost) if same else [],
        "edges_gained_without": named(confidence.odd_gained) if same else [],
        "left_out_by_median": same and confidence.odd_left_out,
    }


_NOTHING: dict[str, None] = dict.fromkeys(
    ("standard_error", "interval", "standardised_interval", "bootstrap", "sites", "without_a_site")
)


class _OfPairs:
    """Numbers of confidence by pair of columns and by pair of variables."""

    def __init__(self, confidence: Confidence, graph: ConsensusGraph, columns: Columns) -> None:
        self._confidence, self._graph = confidence, graph
        self._to_no_units = to_no_units(graph, confidence)
        self._places = columns.places(sizes(graph.told, self._to_no_units, unidentified(confidence, graph)))
        self._column = {name: k for k, name in enumerate(columns.names)}
        self._variable = {name: k for k, name in enumerate(columns.variables)}
        self._of_edge: dict[_Pair, int] = {(i, j): k for k, (i, j) in enumerate(confidence.edges.tolist())}
        self._of_pair: dict[_Pair, list[int]] = {
            (i, j): counts for (i, j), counts in zip(confidence.pairs.tolist(), confidence.counts.tolist(), strict=True)
        }
        self._p = chi_square_tails(confidence.q, np.maximum(confidence.degrees, 1))

    def edge(self, edge: Mapping[str, Any]) -> dict[str, Any]:
        v, w = self._variable[edge["source"]], self._variable[edge["target"]]
        found = {**edge, **_NOTHING, "bootstrap": self._shares(v, w), "without_a_site": self._without(v, w)}
        if edge.get("coefficients"):
            found["coefficients"] = [self._coefficient(one) for one in edge["coefficients"]]
        pair = divmod(int(self._places[v, w]), len(self._column))
        return {**found, **self._errors(pair), "sites": self._sites(pair)} if pair in self._of_edge else found

    def _coefficient(self, one: Mapping[str, Any]) -> dict[str, Any]:
        pair = self._column[one["source"]], self._column[one["target"]]
        return {**one, **self._errors(pair)} if pair in self._of_edge else dict(one)

    def _errors(self, pair: _Pair) -> dict[str, Any]:
        error = float(self._confidence.standard_error[self._of_edge[pair]])
        if math.isnan(error):  # not identified: see `standard_errors`
            return dict.fromkeys(("standard_error", "interval", "standardised_interval"))
        of_tables = error * self._unit(pair)
        factor = None if self._to_no_units is None else float(self._to_no_units[pair])
        largest = math.inf if self._graph.largest is None else float(self._graph.largest[pair])
        interval = _interval(float(self._graph.weights[pair]), of_tables, largest)
        return {
            "standard_error": None if self._graph.withheld[pair] else of_tables,
            "interval": interval,
            "standardised_interval": None if factor is None or interval is None else [end * factor for end in interval],
        }

    def _unit(self, pair: _Pair) -> float:
        """What a weight between columns is multiplied by, to be one in units of the tables."""
        units = self._graph.units
        return 1.0 if units is None else float(units.scales[pair[1]] / units.scales[pair[0]])

    def _shares(self, v: int, w: int) -> dict[str, float] | None:
        draws = self._confidence.draws
        if not draws:
            return None
        adjacent, one, other, _ = self._counts(v, w)
        forward, backward = (one, other) if v < w else (other, one)
        return {"adjacent": adjacent / draws, "forward": forward / draws, "backward": backward / draws}

    def _without(self, v: int, w: int) -> dict[str, int] | None:
        of = self._confidence.left_out
        return {"adjacent": self._counts(v, w)[3], "of": of} if of else None

    def _counts(self, v: int, w: int) -> list[int]:
        return self._of_pair.get((min(v, w), max(v, w)), [0, 0, 0, 0])

    def _sites(self, pair: _Pair) -> dict[str, Any] | None:
        confidence, k = self._confidence, self._of_edge[pair]
        q, degrees = float(confidence.q[k]), int(confidence.degrees[k])
        if not degrees:
            return None
        estimates: list[float] = confidence.site_estimate[:, k].tolist()
        errors: list[float] = confidence.site_error[:, k].tolist()
        told = zip(confidence.sites, estimates, errors, strict=True)
        unit = self._unit(pair)
        return {
            "q": q,
            "p": float(self._p[k]),
            "i2": inconsistency(q, degrees),
            "estimates": {
                site: [estimate * unit, error * unit] for site, estimate, error in told if np.isfinite(estimate + error)
            },
        }


def inconsistency(q: float, degrees: int) -> float:
    """I^2: which share of the sites' variation around their mean is more than chance (Higgins and Thompson 2002)."""
    return max(0.0, (q - degrees) / q) if q > 0.0 else 0.0


def _interval(value: float, error: float, largest: float) -> list[float] | None:
    """The part of the 95 % interval that is not beyond the largest possible size; None: there is none."""
    low, high = value - _WIDTH * error, value + _WIDTH * error
    if not math.isfinite(value + error) or low > largest or high < -largest:
        return None
    return [max(low, -largest), min(high, largest)]
