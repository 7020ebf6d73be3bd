"""Hidden common causes: what arrows of the class, and marks that hold with them, say rightly.

Generated graphs have 1.5 edges a variable and hidden variables that act on two or three observed ones. Two observed
variables are linked in truth if no set of observed ones separates them (Richardson and Spirtes 2002: an inducing path).
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.pag import ARROW, NONE, TAIL
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_research.bench.discrete import run_of_codes, within
from fedbnsl_research.bench.generated import weights_with_hidden
from fedbnsl_research.bench.networks import class_found, named
from fedbnsl_research.bench.private_tables import outward_range
from fedbnsl_research.comparators.causal_learn_adapter import causal_learn_installed, fci
from fedbnsl_research.tables.discrete import DiscreteNetwork, read_discrete
from fedbnsl_research.trials.harness import Row
from fedbnsl_server.inference.ancestral_graphs import of_dag
from fedbnsl_server.inference.effects import Effect, certainty, effects_on_all
from fedbnsl_server.results.hidden_effects import EffectsIfHidden
from fedbnsl_server.results.learned_network import LearnedNetwork, read_network
from fedbnsl_workbench.simulate import simulate

_SITES, _SEEDS, _SURE, _ERRORS = 8, range(10), 0.9, 4.0
_MOST_FOR_FCI, _LIMIT_S = 50, 300.0
_MOST = 64  # sets of parents of a source


class _Case(NamedTuple):
    variables: int
    hidden: int
    rows: int = 1000  # of each site
    epsilon: float | None = None  # of `private`; None: `standard`

    def __str__(self) -> str:
        plan = "standard" if self.epsilon is None else f"private, epsilon {self.epsilon:g}"
        return f"{self.variables} variables, {self.hidden} hidden; {_SITES} x {self.rows} rows; {plan}"


class _Published(NamedTuple):
    """A published network of categories without some of its variables."""

    network: str
    rows: int = 5000  # of each site

    def __str__(self) -> str:
        network = read_discrete(self.network)
        lacking = ", ".join(network.variables[x] for x in _left_out(network))
        return f"{self.network} without {lacking}; {_SITES} x {self.rows} rows; standard"


def _left_out(network: DiscreteNetwork) -> list[int]:
    """Roots that act on two variables or more; in a network without any, what acts on two and has at most one cause."""
    graph = network.graph
    causes, acts_on = graph.sum(axis=0), graph.sum(axis=1)
    roots = np.flatnonzero((causes == 0) & (acts_on >= 2))
    return (roots if roots.size else np.flatnonzero((causes <= 1) & (acts_on == 2))).tolist()


CASES: dict[str, _Case | _Published] = {f"{name}-8x5000": _Published(name) for name in ("child", "alarm")}
CASES |= {f"{d}-{d * share // 100}": _Case(d, d * share // 100) for d in (20, 50, 100) for share in (0, 10, 20)}
CASES["20-4-8x5000"] = _Case(20, 4, rows=5000)
CASES |= {
    f"private-{epsilon}-20-{hidden}{label}": _Case(20, hidden, rows, float(epsilon))
    for epsilon in (5, 1)
    for label, rows in {"": 1000, "-8x5000": 5000}.items()
    for hidden in (0, 4)
}
"""By name."""


class _Truth(NamedTuple):
    linked: Mask
    acts: Mask  # [i, j]: a directed path leads from i to j
    effects: Matrix  # (d, d) total
    X: Matrix


class _Run(NamedTuple):
    result: Mapping[str, Any]
    network: LearnedNetwork


def hidden(cases: Sequence[str] = (), seeds: Sequence[int] | None = None) -> Iterator[Row]:
    """What is said rightly of linked variables, by the class and if common causes may be hidden.

    Parameters
    ----------
    cases
        Names or patterns of `CASES`; empty: all.
    seeds
        Of the graphs, in place of the usual ten.

    Raises
    ------
    SetupError
        If no case has such a name.
    """
    for case in named(CASES, cases).values():
        yield _row(case, seeds or _SEEDS)


def _row(case: _Case | _Published, seeds: Sequence[int]) -> Row:
    if isinstance(case, _Published):
        network = read_discrete(case.network)
        truths = [_truth_of_published(network, case.rows, seed) for seed in seeds]
        runs = [_run_of_published(network, truth.X) for truth in truths]
    else:
        truths = [_truth(case, np.random.default_rng(seed)) for seed in seeds]
        runs = [_run(case, truth.X, seed) for truth, seed in zip(truths, seeds, strict=True)]
    row: Row = {"figure": str(case)} | _of_class(truths, runs)
    if isinstance(case, _Case) and case.epsilon is None and case.variables <= _MOST_FOR_FCI:
        row |= _of_fci(truths)
    told = [k for k, one in enumerate(runs) if one.result["hidden_causes"] is not None]
    if len(told) < len(seeds):
        row["runs that tell marks"] = len(told)
    if not told:
        return row
    truths, runs = [truths[k] for k in told], [runs[k] for k in told]
    return row | _of_marks(truths, runs) | ({} if isinstance(case, _Published) else _of_effects(truths, runs))


def _of_class(truths: Sequence[_Truth], runs: Sequence[_Run]) -> Row:
    by_class = [class_found(one.result) for one in runs]
    arrows = _share([(found & ~found.T, truth.acts) for found, truth in zip(by_class, truths, strict=True)])
    return {
        "skeleton F1, class": _f1([found | found.T for found in by_class], truths),
        "arrows of the class right": arrows,
    }


def _of_fci(truths: Sequence[_Truth]) -> Row:
    """FCI on the rows of all sites together."""
    if not causal_learn_installed():
        return {"FCI": "not run (causal-learn is not installed)"}
    ended = [within(_LIMIT_S, partial(fci, truth.X)) for truth in truths]
    judged = [(truth, *one) for truth, one in zip(truths, ended, strict=True) if one is not None]
    row: Row = {f"FCI not ended in {_LIMIT_S:.0f} s": ended.count(None)} if None in ended else {}
    if not judged:
        return row
    heads = [(marks == ARROW, ~truth.acts.T) for truth, _, marks in judged]
    acts = [((marks == ARROW) & (marks.T == TAIL), truth.acts) for truth, _, marks in judged]
    return row | {
        "skeleton F1, FCI": _f1([marks != NONE for _, _, marks in judged], [truth for truth, _, _ in judged]),
        "'acts on' right, FCI": _share(acts),
        "arrowheads right, FCI": _share(heads),
        "seconds, FCI": round(statistics.mean(seconds for _, seconds, _ in judged), 1),
    }


def _of_marks(truths: Sequence[_Truth], runs: Sequence[_Run]) -> Row:
    results = [one.result for one in runs]
    marks = [_marks(one) for one in results]
    tails = _share([(found["acts"], truth.acts) for found, truth in zip(marks, truths, strict=True)])
    heads = _share([(found["heads"], ~truth.acts.T) for found, truth in zip(marks, truths, strict=True)])
    both = _share(
        [(np.triu(found["hidden"]), ~truth.acts & ~truth.acts.T) for found, truth in zip(marks, truths, strict=True)]
    )
    return {
        "skeleton F1": _f1([found["linked"] for found in marks], truths),
        "'acts on' right": tails,
        "arrowheads right": heads,
        f"'hidden cause' in {_SURE:.0%} of the draws right": both,
        "links that could not be tested": sum(len(one["hidden_causes"]["untested"]) for one in results),
        "runs whose marks are those of a graph": sum(one["hidden_causes"]["legal"] for one in results),
    }


def _of_effects(truths: Sequence[_Truth], runs: Sequence[_Run]) -> Row:
    return {
        "effects of the class right": _of_all(
            right for truth, run in zip(truths, runs, strict=True) for right in _effects_of_class(truth, run.network)
        ),
        "effects by the marks right": _of_all(
            right for truth, run in zip(truths, runs, strict=True) for right in _effects_of_marks(truth, run.network)
        ),
    }


def _effects_of_marks(truth: _Truth, network: LearnedNetwork) -> Iterator[bool]:
    """Of total effects that are identified whatever is hidden, whether the interval of four errors has the true one."""
    if network.pag is None:
        return
    told = EffectsIfHidden(network, network.pag)
    for a, b in permutations(range(len(network.pag)), 2):
        found = told.of([a], b)
        if found.verdict == "identified":
            yield _is_right(told.value([a], b, found.given), truth.effects[a, b])


def _effects_of_class(truth: _Truth, network: LearnedNetwork) -> Iterator[bool]:
    """The same of effects other than 0 that are identified if nothing is hidden."""
    for a in range(len(network.marks)):
        on_all = effects_on_all(network.covariance, network.marks, a, network.columns, network.precision, most=_MOST)
        for b, effects in (on_all or {}).items():
            values = [one.value.item() for one in effects]
            if any(values) and certainty(values) == "identified":
                yield _is_right(effects[0], truth.effects[a, b])


def _is_right(found: Effect, true: float) -> bool:
    error = math.nan if found.standard_error is None else found.standard_error.item()
    return abs(found.value.item() - true) < _ERRORS * error


def _of_all(told: Iterable[bool]) -> str:
    every = list(told)
    return f"{sum(every)} of {len(every)}"


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
        both = one["mark_source"] == one["mark_target"] == "arrow"
        sure = both and (one["bootstrap"] is None or one["bootstrap"]["hidden_cause"] >= _SURE)
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
    return _Truth(of_dag(dag, d) != NONE, leads[:d, :d], effects, X[:, :d])


def _truth_of_published(network: DiscreteNetwork, rows: int, seed: int) -> _Truth:
    hidden = _left_out(network)
    seen = [x for x in range(len(network.variables)) if x not in hidden]
    dag, d = network.graph[np.ix_([*seen, *hidden], [*seen, *hidden])], len(seen)
    [X] = network.tables([_SITES * rows], np.random.default_rng(seed))
    return _Truth(of_dag(dag, d) != NONE, arrows_lead(dag)[:d, :d], np.full((d, d), np.nan), X[:, seen])


def _run_of_published(network: DiscreteNetwork, X: Matrix) -> _Run:
    hidden, described = _left_out(network), network.dictionary()
    seen = [name for x, name in enumerate(network.variables) if x not in hidden]
    described = Dictionary({name: described[name] for name in seen})
    with TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        result = run_of_codes(described, np.array_split(X, _SITES), Plan.load("standard"), folder)
        return _Run(result, read_network(folder))


def _run(case: _Case, X: Matrix, noise_seed: int) -> _Run:
    parts = site_tables(np.array_split(X, _SITES))
    if case.epsilon is None:
        plan, noise = Plan.load("standard"), None
    else:
        names = next(iter(parts.values())).variables
        ranges = {name: {"range": outward_range(values)} for name, values in zip(names, X.T, strict=True)}
        plan, noise = Plan.load("private", epsilon=case.epsilon).with_settings(dictionary=ranges), noise_seed
    plan = plan.with_settings(n_participants=_SITES)
    tables = {site: rows_for(one, plan) for site, one in parts.items()}
    with TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        return _Run(simulate(plan, tables, folder, noise_seed=noise), read_network(folder))
