"""What result.json has under `regressions`: odds ratios, rate ratios and mean differences of children, by parent."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from io import StringIO
from typing import Any

import numpy as np

from fedbnsl.graphs.csv_names import as_cell
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.row_groups import BEFORE
from fedbnsl.rounds.regressions import KINDS_OF_CHILDREN, MOST_COEFFICIENTS
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph
from fedbnsl_server.inference.heterogeneity import chi_square_tails
from fedbnsl_server.inference.regressions import RIDGE, Regression, differing, odd_site
from fedbnsl_server.inference.site_agreement import LEVEL
from fedbnsl_server.results.sentences import Note, note

KINDS: Mapping[str, str] = {**dict.fromkeys(KINDS_OF_CHILDREN, "odds ratio"), "count": "rate ratio"}
"""What the regression of a kind of child gives."""

# Half the width of a 95 % interval, in standard errors.
_WIDTH = 1.959963984540054
# Counts that vary more than this many times as much as Poisson's are said to.
_OVERDISPERSED = 1.1


def ratios_of(
    graph: ConsensusGraph | None, state: AdmmState | None, plan: Plan, names: Sequence[str], rows: int
) -> list[dict[str, Any]]:
    """Of children with levels or counts, in the order of the run.

    None before the graph is found, and where the plan asks for none.

    Parameters
    ----------
    names
        Of all d columns of the run.
    rows
        Of all sites, that are used.
    """
    if graph is None or state is None or not plan.regressions_rounds or not plan.dictionary:
        return []
    if plan.no_ratios_because:
        variables, dag = graph.mask.columns.variables, graph.between_variables
        children = [variables[v] for v in np.flatnonzero(dag.any(axis=0)).tolist()]
        why = note(f"ratios_{plan.no_ratios_because}")
        kinds = {child: plan.dictionary[child].kind for child in children}
        return [_entry(child, KINDS[kind], [why]) for child, kind in kinds.items() if kind in KINDS]
    found = _Ratios(graph, plan, names, rows, list(state.sites))
    differ, odd = differing(state.regressions, LEVEL), odd_site(state.regressions)
    return [found.entry(one, odd if one in differ else "", differs=one in differ) for one in state.regressions]


def with_differences(
    ratios: Sequence[dict[str, Any]],
    edges: Sequence[Mapping[str, Any]],
    curves: Mapping[str, Any] | None,
    columns: Columns,
    plan: Plan,
    rows: int,
) -> list[dict[str, Any]]:
    """All children, in the order of the run: those of `ratios`, and mean differences of others, the weights of edges.

    Parameters
    ----------
    edges, curves
        As result.json has them.
    columns
        Of the result.
    rows
        That the weights rest on where no number bends.
    """
    told = {one["child"]: one for one in ratios}
    first = {name: columns.names[int(own[0])] for name, own in zip(columns.variables, columns.members(), strict=True)}
    curved = {(one["source"], one["target"]) for one in curves["effects"]} if curves else set[tuple[str, str]]()
    found: list[dict[str, Any]] = []
    for child in columns.variables:
        own = [edge for edge in edges if edge["target"] == child]
        if child in told:
            found.append(told[child])
        elif own and plan.dictionary.slice_of(child) != BEFORE:  # between those of the row before arrows mean nothing
            estimates = [_difference(one, curved) for edge in own for one in _coefficients(edge, first)]
            notes = _notes_on_differences(child, own, plan)
            found.append(_entry(child, "mean difference", list(notes), rows=rows, estimates=estimates))
    return found


def _coefficients(edge: Mapping[str, Any], first: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
    """Of columns; `first`: by variable."""
    alone = {**edge, "source": first[edge["source"]], "target": first[edge["target"]]}
    return edge.get("coefficients") or [alone]


def _difference(one: Mapping[str, Any], curved: Set[tuple[str, str]]) -> dict[str, Any]:
    source, target = one["source"], one["target"]
    return {
        "source": source,
        "target": target,
        "estimate": one["weight"],
        "interval": one.get("interval"),
        "log_ratio": None,
        "standard_error": one.get("standard_error"),
        "curved": (source, target) in curved or (target, source) in curved,
        "sites": None,
    }


def _notes_on_differences(child: str, edges: Sequence[Mapping[str, Any]], plan: Plan) -> Iterator[Note]:
    if child in plan.dictionary and plan.dictionary[child].applied != "none":
        yield note("differences_transformed", measure=plan.dictionary[child].measure)
    if open_to := [edge["source"] for edge in edges if not edge["directed"]]:
        yield note("regression_open", child=child, parents=open_to)


def regressions_csv(regressions: Sequence[Mapping[str, Any]]) -> str:
    """One line an estimate: child,kind,source,target,estimate,low,high,standard_error,rows,curved.

    Numbers are empty where they are not known, and where `curved` is 1: no line tells that effect.
    """
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    numbers = ("estimate", "low", "high", "standard_error")
    lines.writerow(["child", "kind", "source", "target", *numbers, "rows", "curved"])
    for one in regressions:
        for told in one["estimates"]:
            low, high = told["interval"] or (None, None)
            values = [{**told, "low": low, "high": high}[name] for name in numbers]
            names = [as_cell(one["child"]), one["kind"], as_cell(told["source"]), as_cell(told["target"])]
            unknown = [told["curved"] or value is None or not math.isfinite(value) for value in values]
            cells = ["" if empty else repr(value) for value, empty in zip(values, unknown, strict=True)]
            lines.writerow([*names, *cells, one["rows"], int(told["curved"])])
    return text.getvalue()


def without_linear_tests(
    edges: Sequence[Mapping[str, Any]], ratios: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The edges without what linear coefficients say of the sites' agreement, where ratios tell it."""
    children = {one["child"] for one in ratios if one["agreement"]}
    return [{**edge, "sites": None} if edge["target"] in children else dict(edge) for edge in edges]


def _entry(child: str, kind: str, notes: Sequence[Note], **told: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "rows": 0,
        "sites": [],
        "odd_site": None,
        "overdispersion": None,
        "agreement": None,
        "estimates": [],
    }
    return {"child": child, "kind": kind, **nothing, **told, "notes": list(notes), "codes": [one.code for one in notes]}


class _Ratios:
    """Regressions by the names of their columns."""

    def __init__(
        self, graph: ConsensusGraph, plan: Plan, names: Sequence[str], rows: int, sites: Sequence[str]
    ) -> None:
        self._graph, self._plan, self._names, self._rows, self._sites = graph, plan, names, rows, sites
        self._columns = plan.columns(names)

    def entry(self, one: Regression, odd: str, *, differs: bool) -> dict[str, Any]:
        """`odd`: the site without which the others agree; `differs`: whether sites do."""
        child = self._variable(one.child[0])
        kind = self._plan.dictionary[child].kind
        told = one.standing == "settled" and one.rows > 0
        p = float(chi_square_tails(np.array([one.q]), np.array([one.degrees]))[0]) if one.degrees else None
        return _entry(
            child,
            KINDS[kind],
            [*self._notes(one, child, kind), *self._differences(one, odd if differs else None)],
            rows=one.rows,
            sites=list(one.sites),
            odd_site=odd or None,
            overdispersion=one.overdispersion if told and kind == "count" else None,
            agreement=None if p is None else {"q": one.q, "degrees": one.degrees, "p": p},
            estimates=list(self._estimates(one, by_site=differs)) if told else [],
        )

    def _estimates(self, one: Regression, *, by_site: bool) -> Iterator[dict[str, Any]]:
        errors, p = one.standard_errors.tolist(), len(one.parents)
        for k, (log_ratio, error) in enumerate(zip(one.at.tolist(), errors, strict=True)):
            known = math.isfinite(error)
            yield {
                "source": self._names[one.parents[k % p]],
                "target": self._names[one.child[k // p]],
                "estimate": _exp(log_ratio) if known else None,
                "interval": [_exp(log_ratio - _WIDTH * error), _exp(log_ratio + _WIDTH * error)] if known else None,
                "log_ratio": log_ratio if known else None,
                "standard_error": error if known else None,
                "curved": False,
                "sites": _of_sites(one, k) if by_site else None,
            }

    def _differences(self, one: Regression, odd: str | None) -> Iterator[Note]:
        """Where sites differ (`odd` is not None): the sites' own ratios of the coefficient in which they do most."""
        if odd is None:
            return
        z = np.abs(np.nan_to_num(one.site_steps / one.site_errors))
        k = int(z.max(axis=0).argmax())
        ends = {
            "source": self._names[one.parents[k % len(one.parents)]],
            "target": self._names[one.child[k // len(one.parents)]],
        }
        sites = [
            note(
                "ratio_of_site", site=site, estimate=told["estimate"], known=bool(told["interval"]), low=low, high=high
            )
            for site, told in _of_sites(one, k).items()
            for low, high in [told["interval"] or (None, None)]
        ]
        sites.sort(key=lambda told: told.numbers["site"] != odd)
        yield note("ratios_by_site", **ends, sites=sites, odd=odd)

    def _notes(self, one: Regression, child: str, kind: str) -> Iterator[Note]:
        if one.standing == "too wide":
            yield note("ratios_too_wide", n=len(one.at), most=MOST_COEFFICIENTS)
            return
        if one.standing == "inconsistent":
            yield note("ratios_inconsistent", site=one.odd)
            return
        if one.standing != "settled":
            yield note("ratios_unsettled", rounds=one.rounds)
            return
        if not one.rows:
            yield note("ratios_no_rows", child=child)
            return
        if kind == "ordinal":
            yield note("ratios_ordinal")
        if one.penalty:
            yield note("ratios_ridge", deviation=RIDGE**-0.5)
        open_to = [name for name in self._parents(one) if self._is_open(name, child)]
        if open_to:
            yield note("regression_open", child=child, parents=open_to)
        if not one.identified.all():
            yield note("ratios_not_identified", child=child)
        if one.rows < self._rows:
            yield note("ratios_of_rows", rows=one.rows, of=self._rows)
        if set(one.sites) != set(self._sites):  # also one that has left the run since
            yield note("ratios_of_sites", sites=list(one.sites))
        if kind == "count" and one.overdispersion > _OVERDISPERSED:
            yield note("ratios_overdispersed", times=one.overdispersion)

    def _parents(self, one: Regression) -> list[str]:
        return list(dict.fromkeys(self._variable(c) for c in one.parents))

    def _is_open(self, parent: str, child: str) -> bool:
        place = {name: k for k, name in enumerate(self._graph.mask.columns.variables)}
        return bool(self._graph.marks[place[child], place[parent]])

    def _variable(self, column: int) -> str:
        return self._columns.variables[int(self._columns.variable_of[column])]


def _of_sites(one: Regression, k: int) -> dict[str, dict[str, Any]]:
    """By site, its own ratio; the interval is None where the step to it is too long to be exact."""
    log_ratios = zip(
        one.sites,
        (one.at + one.site_steps)[:, k].tolist(),
        one.site_errors[:, k].tolist(),
        one.near.tolist(),
        strict=True,
    )
    return {
        site: {
            "estimate": _exp(log_ratio),
            "interval": [_exp(log_ratio - _WIDTH * error), _exp(log_ratio + _WIDTH * error)] if near else None,
        }
        for site, log_ratio, error, near in log_ratios
        if math.isfinite(error)
    }


def _exp(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(number))
