"""What the coordinator's module of a kind of round has, and what it works with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from fedbnsl.errors import LocalProtocolError
from fedbnsl.messages import Content
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.privacy.calibration import Price, price_of
from fedbnsl_server.algorithm.admm import AdmmState


@dataclass(frozen=True)
class Run:
    """What does not change from round to round.

    Attributes
    ----------
    n_samples
        Rows of every participant, by its name.
    """

    plan: Plan
    mask: EdgeMask
    n_samples: Mapping[str, int]

    def prices(self, answers: Iterable[str]) -> dict[str, Price]:
        """What each site that answered pays in this private run, and so the noise of its releases."""
        d = len(self.mask.allowed)
        return {site: price_of(self.plan, n_samples=self.n_samples[site], n_variables=d) for site in answers}

    @property
    def privacy(self) -> Privacy:
        """The plan's [privacy].

        Raises
        ------
        LocalProtocolError
            If it has none.
        """
        if self.plan.privacy is None:
            raise LocalProtocolError("this kind of round belongs to private runs")
        return self.plan.privacy


class Kind(Protocol):
    """A kind of round; contents are those of its module in `fedbnsl.rounds`."""

    def ask(self, state: AdmmState, run: Run, /) -> tuple[AdmmState, Content]:
        """The task's content, and the state that the round starts from."""
        ...

    def fault(self, answer: Any, task: Any, run: Run, /) -> str:
        """Why an answer does not fit its task, as the end of a sentence; empty if it does.

        The codec cannot check this, and the mathematics relies on it.
        """
        ...

    def advance(self, state: AdmmState, answers: Mapping[str, Any], task: Any, run: Run, /) -> AdmmState:
        """The state after the round.

        Parameters
        ----------
        answers
            Contents by site, in the order of `state.sites`.
        """
        ...


def kind_of(name: str) -> Kind:
    """The module of a kind."""
    return cast(Kind, import_module(f"fedbnsl_server.rounds.{name}"))
