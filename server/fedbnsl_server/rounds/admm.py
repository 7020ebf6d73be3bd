"""A round of Algorithm 1 at the coordinator: send W, check each B_p, take the global step."""

from collections.abc import Mapping

from fedbnsl.rounds.admm import Answer, Task, start_of
from fedbnsl.rounds.kinds import stage
from fedbnsl_server.algorithm.admm import AdmmState, advance_admm, begin_start
from fedbnsl_server.rounds.kinds import Run


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """W as it is sent; in the first round of another start, everything zero."""
    start, step = _start_of(state, run)
    if start and step == 1:
        state = begin_start(state)
    return state, Task(state.message)


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report entries that the plan excludes. Dense messages are not checked: their B_p may have any entry."""
    sent = answer.weights.index
    fits = run.plan.dense_messages or run.mask.allowed.flat[sent].all()
    return "" if fits else "has entries that the plan excludes"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """Alg. 1, lines 5 to 8."""
    start, step = _start_of(state, run)
    sent = {site: answer.weights for site, answer in answers.items()}
    return advance_admm(state, sent, run.plan, run.mask, start=start, step=step)


def _start_of(state: AdmmState, run: Run) -> tuple[int, int]:
    return start_of(run.plan, stage(run.plan, state.round + 1).step)
