"""Which kinds of rounds there are, and which round of a run is of which kind."""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from fedbnsl import rounds
from fedbnsl.errors import LocalProtocolError
from fedbnsl.plan.limits import LARGEST_SQUARE
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import Encoding
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.wire import federation_pb2 as federation

LARGEST = LARGEST_SQUARE
"""Limit for the numbers of tasks and private answers, so that nothing overflows; scales are at least 1 / LARGEST."""


LARGEST_WEIGHT = 1e20
"""Limit for the weights of an answer: W and the duals, which sum them up over the rounds, then stay below LARGEST."""


class Kind(Protocol):
    """What the module of a kind of round has."""

    PLACE: int
    """Order within a run: kinds with a lower place come first."""
    NUMBERS: str
    """What a site sends in such a round, in words for the coordinator."""
    RELEASES: str
    """What that takes out of the site, in words for its operator."""
    YIELDS: Yields
    """What comes of the answers."""
    Task: type[Content]
    Answer: type[Content]

    def n_rounds(self, plan: Plan, /) -> int:
        """Rounds of this kind in a run of the plan."""
        ...

    def encode_task(self, task: Any, wire: federation.Task, encoding: Encoding, /) -> None:
        """Write the content of a task into its wire form."""

    def decode_task(self, wire: federation.Task, n_variables: int, encoding: Encoding, /) -> Content:
        """Read it; raises MalformedMessageError for an invalid task."""
        ...

    def encode_answer(self, answer: Any, wire: federation.Update, encoding: Encoding, /) -> None:
        """Write the content of an answer into its wire form."""

    def decode_answer(self, wire: federation.Update, n_variables: int, encoding: Encoding, /) -> Content:
        """Read it; raises MalformedMessageError for an invalid answer."""
        ...


class Iterated(Kind, Protocol):
    """A kind whose rounds go on until nothing is left to do; `n_rounds` does not count them."""

    def most_iterations(self, plan: Plan, /) -> int:
        """How many there are at most."""
        ...


def _found() -> dict[str, Kind]:
    names = [module.name for module in pkgutil.iter_modules(rounds.__path__) if module.name != "kinds"]
    modules = {name: cast(Kind, import_module(f"{rounds.__name__}.{name}")) for name in names}
    return dict(sorted(modules.items(), key=lambda item: item[1].PLACE))


KINDS = _found()
"""The module of each kind by its name, in the order in which their rounds are played."""


class Stage(NamedTuple):
    """The kind of a round, and its number among the rounds of this kind, from 1."""

    kind: str
    step: int

    @property
    def yields(self) -> Yields:
        """What comes of its answers."""
        return KINDS[self.kind].YIELDS


Iterations = Mapping[str, int]
"""How many rounds there are of each iterated kind, by its name; of the others none."""

NO_ITERATIONS: Iterations = {}


def n_rounds(plan: Plan, iterations: Iterations = NO_ITERATIONS) -> int:
    """Rounds of the whole run, with so many of the iterated kinds."""
    return sum(kind.n_rounds(plan) for kind in KINDS.values()) + sum(iterations.values())


def most_rounds(plan: Plan, kind: str) -> int:
    """Rounds of a kind that a run may have, iterations included; 0: the plan has no such rounds."""
    return KINDS[kind].n_rounds(plan) + _most_iterations(KINDS[kind], plan)


def most_iterations(plan: Plan) -> int:
    """Rounds that a run may have in addition, of the iterated kinds."""
    return sum(_most_iterations(kind, plan) for kind in KINDS.values())


def stage(plan: Plan, t: int, iterations: Iterations = NO_ITERATIONS) -> Stage:
    """The stage of round t, counted from 1; raises LocalProtocolError if the plan has no such round."""
    step = t
    for name, kind in KINDS.items():
        here = kind.n_rounds(plan) + iterations.get(name, 0)
        if 1 <= step <= here:
            return Stage(name, step)
        step -= here
    raise LocalProtocolError(f"round {t} does not exist: the plan has rounds 1 to {n_rounds(plan, iterations)}")


def may_be(plan: Plan, t: int, kind: str) -> bool:
    """Whether round t of a run may be of this kind, however many iterations each kind takes.

    Raises LocalProtocolError if no run of the plan has such a round.
    """
    if not 1 <= t <= n_rounds(plan) + most_iterations(plan):
        stage(plan, t)
    fewest_before = most_before = 0
    for name, one in KINDS.items():
        own, more = one.n_rounds(plan), _most_iterations(one, plan)
        if name == kind:
            return own + more > 0 and fewest_before < t <= most_before + own + more
        fewest_before, most_before = fewest_before + own, most_before + own + more
    return False


def _most_iterations(kind: Kind, plan: Plan) -> int:
    return cast(Iterated, kind).most_iterations(plan) if hasattr(kind, "most_iterations") else 0
