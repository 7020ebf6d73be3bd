"""The interface of a kind of round at the coordinator, and what its functions get."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Protocol, Self, cast

import numpy as np

from fedbnsl.errors import LocalProtocolError
from fedbnsl.graphs.cpdag import class_of
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.privacy.calibration import Price, price_of
from fedbnsl.protocol.messages import Content, Loss
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus import RobustRule
from fedbnsl_server.algorithm.influence import Compared
from fedbnsl_server.search.progress import UNWATCHED, Progress


@dataclass(frozen=True)
class Run:
    """What does not change from round to round."""

    plan: Plan
    mask: EdgeMask
    # rows of every participant, by its name: without missing values, once a run without privacy knows them
    n_samples: Mapping[str, int]
    certificates: Mapping[str, bytes] = field(default_factory=dict[str, bytes])  # of the sites that have one, DER
    lost: tuple[Loss, ...] = ()  # sites that secure aggregation has lost
    # rows of the sites that the one name of `n_samples` stands for; empty: each stands for itself
    summed: Mapping[str, int] = field(default_factory=dict[str, int])
    unknown: Mask | None = None  # (V, V) pairs of variables that no row has both of; None: no such pair
    # where a search says how far it is, and hears that it should end; of each round another one
    progress: Progress = UNWATCHED
    whole_rows: Mapping[str, int] = field(default_factory=dict[str, int])  # without a gap, of sites that have told
    # The learned network of the rounds so far as JSON, for the round that scores it; empty: it has no numbers.
    network: Callable[[], str] = lambda: ""
    n_squares: int = 0  # columns of the mask, the last ones, that are squares of numbers

    def as_one(self, name: str) -> Self:
        """The run as it looks where only sums over all sites are known: they count as one, under this name."""
        return replace(self, n_samples={name: sum(self.n_samples.values())}, summed=self.n_samples)

    def of_site(self, name: str) -> Self:
        """The run as the answer of one site is checked: with this site's rows alone."""
        whole = {site: n for site, n in self.whole_rows.items() if site == name}
        return replace(self, n_samples={name: self.n_samples[name]}, whole_rows=whole)

    def class_of(self, dag: Mask) -> Mask:
        """(V, V) marks of the class of a DAG, with what is known; the DAG itself where the plan asks for a DAG."""
        if self.plan.graph_class != "cpdag":
            return dag
        return class_of(dag, self.mask.of_variables.allowed, self.mask.of_variables.required, self.unknown)

    def prices(self, answers: Iterable[str]) -> dict[str, Price]:
        """What each site that answered pays in this private run, and so the noise of its releases."""
        d, m = len(self.mask.allowed) - self.n_squares, self.n_squares
        prices = {
            site: price_of(self.plan, n_samples=self.n_samples[site], n_variables=d, n_squares=m) for site in answers
        }
        return {site: price.of_sum(len(self.summed) or 1) for site, price in prices.items()}

    def rows(self, sites: Iterable[str]) -> list[int]:
        """Rows of these sites."""
        return [self.n_samples[site] for site in sites]

    def free_rows(self, sites: Iterable[str]) -> list[int]:
        """Rows of these sites, less one of each that has taken off its own mean; at least 1."""
        own_mean = self.plan.preparation is not None and self.plan.preparation.intercept == "site"
        return [max(rows - own_mean * (len(self.summed) or 1), 1) for rows in self.rows(sites)]

    def weights(self, sites: Iterable[str]) -> list[int] | None:
        """Rows of these sites where they are their weights in means; None: each site has the same."""
        return self.rows(sites) if self.plan.weighs_rows else None

    def rule(self, sites: Iterable[str]) -> RobustRule | None:
        """What the plan has instead of the mean over these sites, if anything."""
        if self.plan.consensus == "mean":  # each kind of round sums it up itself
            return None
        return RobustRule.of(self.plan.consensus, self.rows(sites))

    @property
    def feature_bounds(self) -> Matrix:
        """(d,) bounds on the squares of the variables in this private run."""
        return np.broadcast_to(np.array(self.privacy.feature_bounds), len(self.mask.allowed))

    @property
    def indicators(self) -> Mask:
        """(d,) which columns hold zeros and ones, by the plan's data dictionary; none where records are averages."""
        dictionary, columns = self.plan.dictionary, self.mask.columns
        alone = not dictionary.rows.averages
        of_variable = [alone and name in dictionary and dictionary[name].is_indicator for name in columns.variables]
        return np.array(of_variable, dtype=bool)[columns.variable_of]

    @property
    def half_ranges(self) -> Matrix:
        """(d,) half the distance between the public bounds of each column, in its unit, where columns are prepared."""
        low, high = self.plan.bounds(self.mask.columns.names)
        return np.asarray((high - low) / 2.0)

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

    def compared(self, state: AdmmState, answers: Mapping[str, Any], task: Any, run: Run, /) -> list[Compared]:
        """What the sites sent, side by side, to see which of them stand out.

        Parameters
        ----------
        state
            After the round.
        answers
            As in `advance`.
        """
        ...


class SummedKind(Kind, Protocol):
    """A kind whose answers may be parts of secure aggregation."""

    def n_summands(self, task: Any, run: Run, /) -> int:
        """Numbers of the sum."""
        ...

    def of_sums(self, sums: Sequence[int], task: Any, run: Run, /) -> Any:
        """What the sums say, in the form of one site's answer."""
        ...


class WholeSites(Kind, Protocol):
    """A kind whose robust rule does not work entry by entry."""

    def left_out(self, state: AdmmState, answers: Mapping[str, Any], task: Any, run: Run, /) -> tuple[str, ...]:
        """Sites that the rule leaves out whole; the state is that before the round or after it: both give the same."""
        ...


def left_out(state: AdmmState, answers: Mapping[str, Any], task: Content, run: Run) -> tuple[str, ...]:
    """Sites that a robust rule leaves out of the result whole."""
    kind = kind_of(task.kind)
    return cast(WholeSites, kind).left_out(state, answers, task, run) if hasattr(kind, "left_out") else ()


def kind_of(name: str) -> Kind:
    """The module of a kind."""
    return cast(Kind, import_module(f"fedbnsl_server.rounds.{name}"))
