"""What a report is made from: the files of a run folder, a truth if there is one, and the tables only if asked."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.errors import PlanError, ResultError
from fedbnsl.graphs.files import LGBN
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.plan.absent import Absent
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.store.result_file import learned_class, undecided_edges
from fedbnsl_server.store.run_folder import SITE_FORGOTTEN
from fedbnsl_workbench.report.scales import Scales, read_scales
from fedbnsl_workbench.scoring.class_scores import Known
from fedbnsl_workbench.scoring.evaluation import (
    columns_of,
    has_raw_weights,
    known_in,
    read_result,
    read_weights,
    scales_of,
    was_searched,
    without_units,
)
from fedbnsl_workbench.scoring.reference import Reference, read_reference

_TRUTH = Path("data") / "truth.csv"
_TABLES = Path("data")


@dataclass(frozen=True)
class Truth:
    """A reference graph over V variables."""

    path: Path
    reference: Reference
    edges: Mask  # (V, V) those between variables in common; there may be cycles
    # (V, V) what a learned graph is compared with: `edges`, or their equivalence class where a class was learned.
    marks: Mask
    scored: Mask  # (V, V) pairs of variables in common


@dataclass(frozen=True)
class ReportedRun:
    """A run folder as read: d columns of V variables."""

    path: Path
    result: dict[str, Any]  # result.json
    plan: Plan
    columns: Columns
    # (d, d) raw weights of the last ADMM round; without any, of the last searched graph. Without units where the run
    # has divided its columns by scales. NaN: withheld.
    W: Matrix
    # (V, V) as it is shown: [i, j] alone for i -> j, both [i, j] and [j, i] for an undirected or undecided edge.
    marks: Mask
    # By column, in squared units of the tables, of those that are known; None where the run has none.
    residual_variance: dict[str, float] | None
    truth: Truth | None
    scales: Scales | None  # of the columns in the tables; None unless these were given
    tables: Path | None  # the folder that `scales` come from
    holds_private: bool  # `scales` come from tables that this program did not generate itself, as far as is known

    @property
    def variables(self) -> list[str]:
        """Names, in order."""
        names: list[str] = self.result["variables"]
        return names

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The rounds of result.json; there is at least one."""
        rounds: list[dict[str, Any]] = self.result["rounds"]
        return rounds

    @property
    def is_class(self) -> bool:
        """Whether the graph is a Markov equivalence class (a CPDAG), not one DAG."""
        return bool(self.result["graph_class"] == "cpdag")

    @property
    def directed(self) -> Mask:
        """(V, V) directed edges of the learned graph."""
        return self.marks & ~self.marks.T

    @property
    def divided_by(self) -> Matrix | None:
        """(d,) scales of the columns, so that there are weights without units; None: there are none."""
        scaled = self.plan.preparation is not None and self.plan.preparation.scale == "pooled"
        return scales_of(self.result) if scaled else None

    @property
    def searched(self) -> bool:
        """Whether the graph was searched with moments, not cut from W."""
        return was_searched(self.result)

    @property
    def has_raw_weights(self) -> bool:
        """Whether there was an ADMM round."""
        return has_raw_weights(self.result)


def _with_sites_of(plan: Plan, result: dict[str, Any]) -> Plan:
    """The plan for people, with the names of sites that the result has: a site was forgotten after the run.

    What the plan says of a site that is gone is left out, unless only one can be meant.
    """
    known = {*result["sites"], *(one["site"] for one in result.get("ejected", ()))}
    named = {*plan.sites, *plan.absent.root, *(one.site for one in plan.interventions)}
    gone, others = sorted(named - known), sorted(known - named)
    names = {name: name for name in named & known} | ({gone[0]: others[0]} if len(gone) == len(others) == 1 else {})
    return plan.model_copy(
        update={
            "sites": tuple(names[site] for site in plan.sites if site in names),
            "absent": Absent({names[site]: lacks for site, lacks in plan.absent.root.items() if site in names}),
            "interventions": tuple(
                one.model_copy(update={"site": names[one.site]}) for one in plan.interventions if one.site in names
            ),
        }
    )


def read_run(path: Path, *, truth: Path | None = None, data: Path | None = None) -> ReportedRun:
    """Read a run folder; see `page.write_report`."""
    result = read_result(path)
    try:
        plan = Plan.load(path / "plan.toml")
    except PlanError as error:
        remedy = "A report needs the plan.toml that the run left in its folder, as it was."
        raise ResultError(str(error), remedy=remedy) from None
    if SITE_FORGOTTEN in result.get("warning_codes", ()):
        plan = _with_sites_of(plan, result)
    variables, columns = result["variables"], columns_of(result)
    # A demo that notes the seed of its data has drawn the tables itself: they hold nobody's data.
    generated = data is None and "data" in result["manifest"]["seeds"]
    if data is None and plan.privacy is None and any((path / _TABLES).glob("site-*.csv")):
        data = path / _TABLES
    if truth is None and (path / _TRUTH).exists():
        truth = path / _TRUTH
    return ReportedRun(
        path=path,
        result=result,
        plan=plan,
        columns=columns,
        W=without_units(read_weights(path / "weights.csv", columns.names), result),
        marks=learned_class(result) | undecided_edges(result).T,
        residual_variance=None if LGBN in result["not_written"] else _residual_variance(path / LGBN, columns.names),
        truth=None
        if truth is None
        else _read_truth(truth, variables, known_in(path, result) if result["graph_class"] == "cpdag" else None),
        scales=None
        if data is None
        else read_scales(data, variables, columns=columns.names, dictionary=plan.dictionary),
        tables=data,
        holds_private=data is not None and not generated,
    )


def _residual_variance(path: Path, columns: Sequence[str]) -> dict[str, float] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        unknown = content.get("not_known", ())
        found = {name: content["cpds"][name]["variance"][0] for name in columns if name not in unknown}
        if None in found.values():  # written so before result.json had `not_written`
            return None
        variances = {name: float(value) for name, value in found.items()}
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ResultError(f"{path} cannot be read as a linear Gaussian network: {error!r}") from None
    if not all(math.isfinite(value) and value >= 0 for value in variances.values()):
        raise ResultError(f"{path} holds a variance that is negative or no number")
    return variances


def _read_truth(path: Path, variables: Sequence[str], known: Known | None) -> Truth:
    """A truth to compare with; as a class, with the knowledge that the run had, where `known` is given."""
    reference = read_reference(path, variables)
    edges, marks, scored = np.zeros((3, len(variables), len(variables)), dtype=bool)
    common = np.ix_(reference.common, reference.common)
    edges[common], scored[common] = reference.edges, True
    marks[common] = reference.edges
    if known is not None and is_acyclic(reference.edges):  # a graph with a cycle has no class
        marks[common] = known.of_common(reference.common).class_of(reference.edges, reference.directed)
    return Truth(path, reference, edges, marks, scored)
