"""Hidden common causes: what arrows of the class, and marks that hold with them, say rightly.

Generated graphs have 1.5 edges a variable and hidden variables that act on two or three observed ones. Two observed
variables are linked in truth if no set of observed ones separates them (Richardson and Spirtes 2002: an inducing path).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.pag import MARK_NAMES, NONE, Known, Marks
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_research.bench.generated import weights_with_hidden
from fedbnsl_research.bench.networks import class_found
from fedbnsl_research.trials.harness import Row
from fedbnsl_server.inference.ancestral_graphs import is_legal
from fedbnsl_server.inference.hidden_adjustment import adjustment
from fedbnsl_workbench.simulate import simulate

_SITES, _SEEDS, _SURE, _ERRORS = 8, range(10), 0.9, 4.0
_MARKS = {name: mark for mark, name in MARK_NAMES.items()}


class _Case(NamedTuple):
    variables: int
    hidden: int
    rows: int = 1000  # of each site


class _Truth(NamedTuple):
    linked: Mask
    acts: Mask  # [i, j]: a directed path leads from i to j
    effects: Matrix  # (d, d) total
    X: Matrix


def hidden(seeds: Sequence[int] | None = None) -> Iterator[Row]:
    """What is said rightly of linked variables, by the class and if common causes may be hidden.

    `seeds`: of the graphs, in place of the usual ten.
    """
    for variables in (20, 50):
        for share in (0, 10, 20):
            yield _row(_Case(variables, variables * share // 100), seeds or _SEEDS)
    yield _row(_Case(20, 4, rows=5000), seeds or _SEEDS)


def _row(case: _Case, seeds: Sequence[int]) -> Row:
    truths = [_truth(case, np.random.default_rng(seed)) for seed in seeds]
    results = [_run(truth.X) for truth in truths]
    return {"figure": f"{case.variables} variables, {case.hidden} hidden; {_SITES} x {case.rows} rows"} | _scores(
        truths, results
    )


def _scores(truths: Sequence[_Truth], results: Sequence[Mapping[str, Any]]) -> Row:
    by_class = [class_found(one) for one in results]
    marks, as_matrix = [_marks(one) for one in results], [_matrix(one) for one in results]
    arrows = _share([(found & ~found.T, truth.acts) for found, truth in zip(by_class, truths, strict=True)])
    tails = _share([(found["acts"], truth.acts) for found, truth in zip(marks, truths, strict=True)])
    heads = _share([(found["heads"], ~truth.acts.T) for found, truth in zip(marks, truths, strict=True)])
    both = _share(
        [(np.triu(found["hidden"]), ~truth.acts & ~truth.acts.T) for found, truth in zip(marks, truths, strict=True)]
    )
    return {
        "skeleton F1, class": _f1([found | found.T for found in by_class], truths),
        "skeleton F1": _f1([found["linked"] for found in marks], truths),
        "arrows of the class right": arrows,
        "'acts on' right": tails,
        "arrowheads right": heads,
        f"'hidden cause' in {_SURE:.0%} of the draws right": both,
        "runs whose marks are those of a graph": sum(is_legal(one, _nothing_known(one)) for one in as_matrix),
        "effects identified right": _effects(truths, results),
    }


def _effects(truths: Sequence[_Truth], results: Sequence[Mapping[str, Any]]) -> str:
    """Of total effects that the marks identify, those whose interval of four errors has the true one."""
    right = told = 0
    for truth, result in zip(truths, results, strict=True):
        marks = _matrix(result)
        S, n = np.cov(truth.X.T, bias=True), len(truth.X)
        for a, b in np.argwhere(~np.eye(len(marks), dtype=bool)).tolist():
            found = adjustment(marks, [a], b)
            if found.verdict != "identified":
                continue
            given = [a, *found.given]
            inverted = np.linalg.inv(S[np.ix_(given, given)])
            slope = inverted @ S[given, b]
            error = np.sqrt((S[b, b] - slope @ S[given, b]) * inverted[0, 0] / n)
            told += 1
            right += abs(slope[0] - truth.effects[a, b]) < _ERRORS * error
    return f"{right} of {told}"


def _nothing_known(marks: Marks) -> Known:
    nothing = np.zeros(marks.shape, dtype=bool)
    return Known(nothing, nothing)


def _matrix(result: Mapping[str, Any]) -> Marks:
    """(V, V) marks of a result."""
    names = result["variables"]
    marks = np.full((len(names), len(names)), NONE, dtype=np.int8)
    for one in result["hidden_causes"]["links"]:
        a, b = names.index(one["source"]), names.index(one["target"])
        marks[b, a], marks[a, b] = _MARKS[one["mark_source"]], _MARKS[one["mark_target"]]
    return marks


def _share(told: Sequence[tuple[Mask, Mask]]) -> str:
    right, of = (sum(int(one.sum()) for one in these) for these in ((a & b for a, b in told), (a for a, _ in told)))
    return f"{right} of {of}"


def _f1(found: Sequence[Mask], truths: Sequence[_Truth]) -> str:
    right = sum(int((one & truth.linked).sum()) for one, truth in zip(found, truths, strict=True))
    in_all = sum(int(one.sum() + truth.linked.sum()) for one, truth in zip(found, truths, strict=True))
    return f"{2 * right / in_all:.3f}"


def _marks(result: Mapping[str, Any]) -> dict[str, Mask]:
    names = result["variables"]
    found = {name: np.zeros((len(names), len(names)), dtype=bool) for name in ("linked", "acts", "heads", "hidden")}
    for one in result["hidden_causes"]["links"]:
        a, b = names.index(one["source"]), names.index(one["target"])
        found["linked"][a, b] = found["linked"][b, a] = True
        found["heads"][a, b] |= one["mark_target"] == "arrow"
        found["heads"][b, a] |= one["mark_source"] == "arrow"
        found["acts"][a, b] |= (one["mark_source"], one["mark_target"]) == ("tail", "arrow")
        sure = one["mark_source"] == one["mark_target"] == "arrow" and one["bootstrap"]["hidden_cause"] >= _SURE
        found["hidden"][a, b] = found["hidden"][b, a] = sure
    return found


def _truth(case: _Case, rng: np.random.Generator) -> _Truth:
    d, n = case.variables, case.variables + case.hidden
    W = weights_with_hidden(d, case.hidden, rng)
    E = rng.standard_normal((_SITES * case.rows, n)) * np.sqrt(rng.uniform(0.5, 1.5, n))
    X = E @ np.linalg.inv(np.eye(n) - W)
    dag = W != 0.0
    leads = arrows_lead(dag)
    effects: Matrix = np.asarray(np.linalg.inv(np.eye(n) - W)[:d, :d], dtype=np.float64)
    return _Truth(_linked(dag, leads, d), leads[:d, :d], effects, X[:, :d])


def _linked(dag: Mask, leads: Mask, d: int) -> Mask:
    """(d, d) pairs of the first d nodes with an inducing path: colliders act on an end, all else on it is hidden."""
    found = np.zeros((d, d), dtype=bool)
    for x in range(d):
        for y in range(x):
            above = leads[:, x] | leads[:, y]
            above[[x, y]] = True
            found[x, y] = found[y, x] = _induces(dag, above, x, y, d)
    return found


def _induces(dag: Mask, above: Mask, x: int, y: int, d: int) -> bool:
    waiting = [(k, True) for k in np.flatnonzero(dag[x]).tolist()]  # (node, whether an arrow led there)
    waiting += [(k, False) for k in np.flatnonzero(dag[:, x]).tolist()]
    seen = set(waiting)
    while waiting:
        k, into = waiting.pop()
        if k == y:
            return True
        onward = [(c, True) for c in np.flatnonzero(dag[k]).tolist()] if k >= d else []
        if above[k] if into else k >= d:
            onward += [(p, False) for p in np.flatnonzero(dag[:, k]).tolist()]
        new = {one for one in onward if one[0] != x} - seen
        seen |= new
        waiting += sorted(new)
    return False


def _run(X: Matrix) -> dict[str, Any]:
    plan = Plan.load("standard").with_settings(n_participants=_SITES)
    tables = {site: rows_for(one, plan) for site, one in site_tables(np.array_split(X, _SITES)).items()}
    with TemporaryDirectory() as scratch:
        return simulate(plan, tables, Path(scratch, "run"))
