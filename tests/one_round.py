"""One round of a run by the coordinator's own steps, for tests that play rounds by themselves."""

from collections.abc import Mapping

from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Content, LocalUpdate
from fedbnsl.rounds.kinds import stage
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.rounds.kinds import Run, kind_of
from fedbnsl_server.run import round_loop


def advance(
    state: AdmmState,
    updates: Mapping[str, LocalUpdate],
    plan: Plan,
    mask: EdgeMask,
    n_samples: Mapping[str, int] | None = None,
) -> AdmmState:
    """The state after the next round."""
    run = Run(plan, mask, n_samples or {})
    before, asked = ask(state, plan, mask)
    return round_loop.advance(before, updates, asked, run)


def ask(state: AdmmState, plan: Plan, mask: EdgeMask) -> tuple[AdmmState, Content]:
    """What the next round asks, and the state that it starts from."""
    return kind_of(stage(plan, state.round + 1).kind).ask(state, Run(plan, mask, {}))
