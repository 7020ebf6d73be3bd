"""Sums along edges that the plan forbids, or of other kinds of columns, are refused, whatever a coordinator asks."""

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.knowledge import Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Content, RoundTask, SiteState
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.curvature import Task as Curvature
from fedbnsl.rounds.regressions import Family
from fedbnsl.rounds.regressions import Task as Regressions
from fedbnsl_client.participant import Unaccounted
from fedbnsl_client.rounds.kinds import LocalProblem, local_rounds

ILL, AGE, DOSE = range(3)
COLUMNS = ("ill", "age", "dose")
DICTIONARY = Dictionary.model_validate({"ill": {"kind": "binary", "levels": ["no", "yes"]}, "age": {}, "dose": {}})
KNOWN = Knowledge(forbidden=(("dose", "ill"),), tiers=(("age",), ("ill", "dose")))
PLAN = Plan.load("standard").with_dictionary(DICTIONARY, origin="here").with_settings(knowledge=KNOWN)


def begin(kind: str, content: Content) -> None:
    zero, X = SparseMatrix.zeros(3), np.zeros((30, 3))
    problem = LocalProblem(PLAN, X, PLAN.edge_mask(COLUMNS), Unaccounted(), lambda n: 0)
    local_rounds(kind)(problem, SiteState(zero, zero)).begin(RoundTask(15, content, contributed=True), None)


def regression(*parents: int) -> Regressions:
    return Regressions((Family((ILL,), parents),), np.zeros(len(parents)))


def graph(source: int, target: int) -> Curvature:
    edges = np.zeros((3, 3), dtype=bool)
    edges[source, target] = True
    return Curvature(SparseMatrix.on_support(edges.astype(float), edges), np.empty(0, dtype=np.int64))


def test_a_site_regresses_along_allowed_edges_alone() -> None:
    begin("regressions", regression(AGE))
    with pytest.raises(RemoteProtocolError, match="along the edge 'dose' -> 'ill', which the plan does not allow"):
        begin("regressions", regression(AGE, DOSE))


def test_a_site_looks_for_curves_along_allowed_edges_alone() -> None:
    begin("curvature", graph(AGE, DOSE))
    with pytest.raises(RemoteProtocolError, match="along the edge 'dose' -> 'age', which the plan does not allow"):
        begin("curvature", graph(DOSE, AGE))


def test_a_site_regresses_children_with_levels_or_counts_alone_at_coefficients_of_some_size() -> None:
    with pytest.raises(RemoteProtocolError, match="a regression of a child without levels or counts"):
        begin("regressions", Regressions((Family((DOSE,), (AGE,)),), np.zeros(1)))
    with pytest.raises(RemoteProtocolError, match="round 15"):
        begin("regressions", Regressions((Family((ILL,), (AGE,)),), np.array([1e300])))
