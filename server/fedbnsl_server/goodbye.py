"""What the sites are told when a run is over, and how they are told."""

import asyncio
from contextlib import suppress

from fedbnsl.errors import DivergenceError, FedbnslError, InterruptedRunError, QuorumLostError, ResultError
from fedbnsl.interrupt import signals_to_heed
from fedbnsl.messages import Finished
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import consensus_graph
from fedbnsl_server.sites.mailbox import Mailbox

_PUBLIC_REASONS: list[tuple[type[FedbnslError], str]] = [
    (InterruptedRunError, "the coordinator was interrupted; join again if it continues the run"),
    (QuorumLostError, "too few sites answered in time"),
    (DivergenceError, "the iteration diverged: its numbers are no longer finite"),
    (ResultError, "the coordinator could not write its results"),
]


def end_of(state: AdmmState, plan: Plan, variables: tuple[str, ...]) -> Finished:
    """What the sites are told when all rounds are complete."""
    return Finished(consensus_graph(state, plan, plan.edge_mask(variables)).as_sparse())


async def tell_the_end(mailbox: Mailbox, finished: Finished, sites: set[str], grace_s: float) -> None:
    """Tell the sites that the run has ended; another signal stops waiting for those that have not heard it."""
    goodbye = asyncio.ensure_future(mailbox.finish(finished, sites, grace_s))
    for number in signals_to_heed():
        asyncio.get_running_loop().add_signal_handler(number, goodbye.cancel)
    with suppress(asyncio.CancelledError):
        await goodbye


def public_reason(error: Exception) -> str:
    """What the sites are told: fixed sentences, because an error's text may hold paths of this machine."""
    for kind, sentence in _PUBLIC_REASONS:
        if isinstance(error, kind):
            return sentence
    return "an unexpected error at the coordinator"
