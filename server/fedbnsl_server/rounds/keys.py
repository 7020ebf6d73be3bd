"""A round of keys at the coordinator: name all sites to each, and keep their keys to pass them on.

The coordinator cannot tell whose key it is: that is for the sites to check.
"""

from collections.abc import Mapping
from dataclasses import replace

from fedbnsl.protocol.codec import task_digest
from fedbnsl.protocol.messages import DIGEST_BYTES, Membership
from fedbnsl.rounds.keys import Answer, Task
from fedbnsl_server.algorithm.admm import AdmmState, with_memberships
from fedbnsl_server.algorithm.influence import Compared
from fedbnsl_server.rounds.kinds import Run


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """All sites of the run, in the order of their names."""
    memberships = (
        Membership(site, run.n_samples[site], run.certificates.get(site, b"")) for site in sorted(state.sites)
    )
    return state, Task(tuple(memberships))


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report a key for other sites, or one with which no site can share a secret: all of them would refuse it."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey  # few runs need it

    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(answer.public_key))
    except ValueError:
        return "has a key that shares no secret with any other"
    same = answer.task_digest == task_digest(task, None, run.lost)[:DIGEST_BYTES]
    return "" if same else "has a key for other sites than those that were named"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """The memberships with their keys, which go out with the next task."""
    memberships = (
        replace(
            membership, public_key=answers[membership.site].public_key, signature=answers[membership.site].signature
        )
        for membership in task.memberships
    )
    return with_memberships(state, tuple(memberships))


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Nothing: keys are random."""
    return []
