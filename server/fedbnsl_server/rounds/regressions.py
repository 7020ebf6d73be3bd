"""A step of the regressions at the coordinator: sum what the sites tell, and ask at better coefficients."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.plan.limits import MOST_REGRESSION_NUMBERS
from fedbnsl.plan.row_groups import BEFORE
from fedbnsl.protocol.sparse import symmetric_of
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.regressions import KINDS_OF_CHILDREN, MOST_COEFFICIENTS, Answer, Family, Task
from fedbnsl_server.algorithm.admm import AdmmState, of_result
from fedbnsl_server.algorithm.consensus_graph import consensus_graph
from fedbnsl_server.algorithm.influence import Compared
from fedbnsl_server.inference.regressions import Regression, SiteSums, advanced, begun
from fedbnsl_server.rounds.kinds import Run

# Of eigenvalues of the information in units of its diagonal, and of log-likelihoods.
_ROUNDING = 1e-6


def begin(state: AdmmState, run: Run) -> AdmmState:
    """The state with the regressions of the graph that was found, all still to come."""
    if not run.plan.has_ratios:
        return state
    places = {name: k for k, name in enumerate(run.mask.columns.names)}
    shown, names = of_result(state, run.mask.columns)
    columns = run.mask.columns.over(np.array([places[name] for name in names], dtype=np.int64))
    graph = consensus_graph(shown, run.plan, run.plan.edge_mask(names))
    own = [tuple(places[names[c]] for c in members.tolist()) for members in columns.members()]
    scales = np.ones(len(places)) if state.units is None else np.where(run.indicators, 1.0, state.units.scales)
    found: list[Regression] = []
    room = MOST_REGRESSION_NUMBERS
    for v in np.flatnonzero(graph.between_variables.any(axis=0)).tolist():
        name, dictionary = columns.variables[v], run.plan.dictionary
        # Of a variable of the row before, the edges into it are what it shares with others, and no causes.
        if dictionary[name].kind not in KINDS_OF_CHILDREN or dictionary.slice_of(name) == BEFORE:
            continue
        parents = sorted(c for w in np.flatnonzero(graph.between_variables[:, v]).tolist() for c in own[w])
        family = Family(own[v], tuple(parents))
        regression = begun(*family, scales[parents])
        if family.n_coefficients > MOST_COEFFICIENTS or family.n_numbers > room:
            regression = replace(regression, standing="too wide")
        else:
            room -= family.n_numbers
        found.append(regression)
    return replace(state, regressions=tuple(found))


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """All families that have not settled, at their next coefficients."""
    going = [one for one in state.regressions if one.goes_on]
    families = tuple(Family(one.child, one.parents) for one in going)
    return state, Task(families, np.concatenate([one.asked for one in going]))


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report sums that were not asked for, or that no records have."""
    F, q = len(task.families), sum(one.n_coefficients for one in task.families)
    expected = (F, F, q, sum(one.n_numbers for one in task.families) - 3 * F - q, F)
    parts = (answer.rows, answer.log_likelihood, answer.gradient, answer.information, answer.dispersion)
    if tuple(one.size for one in parts) != expected:
        return f"has not the sums of the {F} regressions that were asked for"
    if not all((np.abs(one) <= LARGEST).all() for one in parts[1:]):
        return f"has a sum beyond {LARGEST:g}"
    for family, one in zip(task.families, _of_families(answer, task), strict=True):
        if not _is_possible(one, counts=_counts(family, run), most_rows=run.plan.max_rows):
            child = run.mask.columns.variables[int(run.mask.columns.variable_of[family.child[0]])]
            return f"has sums of the regression of {child!r} that no records have"
    return ""


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """Newton's step of each family."""
    by_site = {
        site: [one._replace(rows=min(one.rows, run.n_samples[site])) for one in _of_families(answer, task)]
        for site, answer in answers.items()
    }
    left = run.plan.regressions_rounds - state.iterations["regressions"] - 1
    found, k = list(state.regressions), 0
    for place, one in enumerate(state.regressions):
        if one.goes_on:
            told = {site: sums[k] for site, sums in by_site.items()}
            found[place], k = advanced(one, told, rounds_left=left), k + 1
    return replace(state, regressions=tuple(found))


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Nothing: whether sites agree is tested once the coefficients have settled."""
    return []


def _counts(family: Family, run: Run) -> bool:
    columns = run.mask.columns
    return run.plan.dictionary[columns.variables[int(columns.variable_of[family.child[0]])]].kind == "count"


def _of_families(answer: Answer, task: Task) -> Iterator[SiteSums]:
    first = of_upper = 0
    for k, family in enumerate(task.families):
        q = family.n_coefficients
        last, end = first + q, of_upper + q * (q + 1) // 2
        yield SiteSums(
            int(answer.rows[k]),
            float(answer.log_likelihood[k]),
            answer.gradient[first:last],
            symmetric_of(answer.information[of_upper:end], q),
            float(answer.dispersion[k]),
        )
        first, of_upper = last, end


def _is_possible(one: SiteSums, *, counts: bool, most_rows: int) -> bool:
    """Whether some records have these sums: l of levels is at most 0, the information has no negative eigenvalue."""
    J, squares = one.information, one.information.diagonal()
    if not 0 <= one.rows <= most_rows or (squares < 0.0).any() or one.dispersion < 0.0:
        return False
    if not counts and (one.log_likelihood > _ROUNDING or one.dispersion):
        return False
    size = np.where(squares > 0.0, np.sqrt(squares), 1.0)
    if (J[squares == 0.0] != 0.0).any() or (not one.rows and J.any()):
        return False
    return bool(np.linalg.eigvalsh(J / size / size[:, None])[0] >= -_ROUNDING)
