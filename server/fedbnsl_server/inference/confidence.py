"""How sure a searched graph is: errors of its coefficients, shares of a bootstrap, agreement of sites, signs of misfit.

Everything is computed at the coordinator from moments that it has: it costs no message and no privacy.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedbnsl.graphs.pag import ARROW, Known, Marks
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.messages import EdgeDraws
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.inference.ancestral_graphs import is_legal
from fedbnsl_server.inference.bootstrap import Draws, Search, Shares
from fedbnsl_server.inference.draws import FEW_DRAWS
from fedbnsl_server.inference.heterogeneity import MOST_LEFT_OUT, holm, kept_without_a_site, tails
from fedbnsl_server.inference.hidden_adjustment import Adjustments
from fedbnsl_server.inference.hidden_causes import MOST_DRAWN, MOST_VARIABLES, Found, Pags, tells_enough
from fedbnsl_server.inference.relations import functions, relations
from fedbnsl_server.inference.site_agreement import site_agreement
from fedbnsl_server.inference.standard_errors import correlation_errors, log_variance_errors, standard_errors
from fedbnsl_server.search.dependent_rows import icc
from fedbnsl_server.search.linear_network import SINGULAR, Accuracy, LinearNetwork, SiteMoments, edges_of, fitted
from fedbnsl_server.search.progress import UNWATCHED, Progress

# Sites whose estimates are kept one by one; of more, Q alone.
_MOST_TOLD = 100
# A correlation of residuals stands out if chance gives one as large, anywhere in the graph, less often than this.
_LEVEL = 0.01
_MOST_UNEXPLAINED = 20
# An edge that fewer of the draws have is none.
_RARE = 0.05
_NO_PAIRS: Index = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Confidence:
    """Numbers of confidence in a graph, in units of the columns that the search had."""

    # n_samples, noise_std: of the pooled moments; see `Accuracy`
    n_samples: float
    noise_std: float
    edges: Index  # (E, 2) edges between columns, row by row
    # (E,) of their coefficients, given the graph; NaN: not identified, as between functions of each other
    standard_error: Matrix
    # variance, residual_variance: (d,) of the columns
    variance: Matrix
    residual_variance: Matrix
    # (d, d) of the residuals of one variable's columns, 0 between variables; empty where each has one column
    residual_correlation: Matrix
    log_variance_error: Matrix  # (d,) standard error of the logarithm of the residual variance
    # names of P sites whose own coefficients are kept: none where there is one alone, where they are not known,
    # and of more than a hundred
    sites: tuple[str, ...]
    # site_estimate, site_error: (P, E) coefficients of each site alone and their standard errors, NaN where it
    # tells none
    site_estimate: Matrix
    site_error: Matrix
    # q, degrees: (E,) Cochran's Q over the sites and its degrees of freedom; 0 degrees: not known
    q: Matrix
    degrees: Index
    draws: int  # of the bootstrap; 0: none
    left_out: int  # searches without one site each; 0: none
    pairs: Index  # (K, 2) pairs of variables, the first before the second, that any of these graphs has
    # (K, 4) of them: in how many draws they are adjacent, directed as named, directed the other way; and how many
    # searches without a site have them adjacent. Between functions of each other, rounding alone directs an edge
    # of a draw: it counts as one without a direction.
    counts: Index
    n_apart: int  # pairs of columns without an edge whose residuals are known
    unexplained: Index  # (U, 2) of them: those whose residuals are correlated beyond error, the strongest first
    unexplained_correlation: Matrix  # (U,) of these residuals
    n_unexplained: int  # how many there are: at most twenty are named
    # names of sites of a private run whose last release the noise hides: it is in none of these numbers
    uncounted: tuple[str, ...] = ()
    # related, exact: (R, d) sets of columns that a linear relation ties, and (R,) whether it is exact; none where
    # noise hides it
    related: Mask = field(default_factory=lambda: np.empty((0, 0), dtype=bool))
    exact: Mask = field(default_factory=lambda: np.empty(0, dtype=bool))
    # by how much the score of all records would be lower without the plan's knowledge; NaN: there is none, or it
    # was not searched without
    cost_of_knowledge: float = math.nan
    # by how much more likely all records are under the graph without it than under the best graph with it that
    # has edges between the same variables: the difference of the logarithms, without what edges cost
    cost_on_same_pairs: float = math.nan
    # (K, 2) edges between variables which the class without knowledge has and knowledge forbids, both ways if
    # undirected; at most twenty
    against_knowledge: Index = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    # (A, 2) pairs of columns without an edge whose residuals vary together differently at the sites
    differ_apart: Index = field(default_factory=lambda: _NO_PAIRS)
    odd_site: str = ""  # name of the one site without which the coefficients of the others agree; empty: there is none
    odd_in: Index = field(default_factory=lambda: _NO_PAIRS)  # (O, 2) pairs of columns in which it differs, most first
    # odd_lost, odd_gained: (L, 2) and (G, 2) pairs of variables, the first before the second, that are an edge
    # with this site and none without it, and the other way round; empty where nothing was searched without it
    odd_lost: Index = field(default_factory=lambda: _NO_PAIRS)
    odd_gained: Index = field(default_factory=lambda: _NO_PAIRS)
    odd_left_out: bool = False  # whether `consensus = "median"` would leave this site out of the search
    # leading, led: (L, 2) ordered pairs of variables that a path of directed edges joins in any draw, and (L,) in
    # how many
    leading: Index = field(default_factory=lambda: _NO_PAIRS)
    led: Index = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # (d, d) of the moments' accuracy, where rows have gaps; otherwise (0, 0)
    widening: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    # others, counted: how many other rows a row's group has, on average, and how many rows a score counted, as they
    # depend on each other; 0 where all are independent
    others: float = 0.0
    counted: float = 0.0
    # (2, d) intraclass correlations of the columns, and of what their parents leave of them; (2, 0): not known
    icc: Matrix = field(default_factory=lambda: np.empty((2, 0)))
    # (T, 2) edges between variables that a private run had found, but hardly any draw has: they are in no graph
    taken_out: Index = field(default_factory=lambda: _NO_PAIRS)
    # (V, V) the partial ancestral graph, which holds if causes are hidden; (0, 0): not told
    pag: Marks = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int8))
    # whether it is that of some graph with hidden causes
    pag_is_legal: bool = False
    # of the draws' partial ancestral graphs: (V, V, 4) [i, j, m]: those with mark m at j; (V, V) with an arrowhead at
    # both ends; of size 0 where these were not looked for
    pag_counts: Index = field(default_factory=lambda: np.zeros((0, 0, 4), dtype=np.int64))
    pag_headed: Index = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    # (A, 2) sources and targets of the effects that it identifies by adjustment, and in how many draws the same
    # variables may be adjusted for: here and below, of draws whose own is that of some graph
    adjusted: Index = field(default_factory=lambda: _NO_PAIRS)
    adjusted_counts: Index = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # (V, V) [i, j]: in how many draws no path is left on which i may act on j; (0, 0): not counted
    no_path_counts: Index = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    # (K, 2) edges of it that could not be tested, the first variable before the second
    pag_untested: Index = field(default_factory=lambda: _NO_PAIRS)

    def shares(self, names: Sequence[str]) -> dict[tuple[str, str], tuple[float, float, float]]:
        """Of every pair of the V variables that a draw joins: shares with an edge, as named, and the other way."""
        pairs: list[list[int]] = self.pairs.tolist()
        counts: list[list[int]] = self.counts.tolist()
        return {
            (names[i], names[j]): (adjacent / self.draws, one / self.draws, other / self.draws)
            for (i, j), (adjacent, one, other, _) in zip(pairs, counts, strict=True)
            if adjacent
        }

    def pag_with_shares(self) -> tuple[Marks | None, Matrix | None]:
        """(V, V) the partial ancestral graph, and the shares of draws that have the same marks; None: not told."""
        if not self.pag.size:
            return None, None
        same = self.pag_same
        return self.pag, None if same is None else same / self.draws

    @property
    def pag_same(self) -> Index | None:
        """(V, V) how many draws have the same mark as the partial ancestral graph; None: not counted."""
        if not (self.draws and self.pag_counts.size):
            return None
        of_marks = self.pag[:, :, None].astype(np.int64)
        return np.asarray(np.take_along_axis(self.pag_counts, of_marks, axis=2)[:, :, 0])

    def with_pag(self, found: Found, known: Known) -> "Confidence":
        """With a partial ancestral graph that was found elsewhere, of which no draws tell."""
        return replace(self, **_of_pag(found, (), known))

    def of_edges(self, dag: Mask) -> EdgeDraws | None:
        """What the draws have on the edges of a (V, V) DAG; None without draws."""
        if not self.draws:
            return None
        told: dict[tuple[int, int], tuple[int, int, int]] = {}
        for (i, j), (adjacent, one, other, _) in zip(self.pairs.tolist(), self.counts.tolist(), strict=True):
            told[i, j], told[j, i] = (adjacent, one, other), (adjacent, other, one)
        return EdgeDraws(self.draws, tuple(told.get((i, j), (0, 0, 0)) for i, j in np.argwhere(dag).tolist()))

    def rarely_drawn(self, dag: Mask) -> Mask:
        """(V, V) edges of a DAG that so few draws have adjacent that they are no edges; none of too few draws."""
        found = np.zeros_like(dag)
        drawn = self.of_edges(dag)
        if drawn is not None and self.draws >= FEW_DRAWS:
            found[dag] = [adjacent < _RARE * self.draws for adjacent, _, _ in drawn.counts]
        return found

    def without_tests_of_lines(self) -> "Confidence":
        """Without what straight lines say of pairs that have no edge, and of how sites differ."""
        return replace(
            self,
            q=np.zeros_like(self.q),
            degrees=np.zeros_like(self.degrees),
            n_apart=0,
            n_unexplained=0,
            unexplained=_NO_PAIRS,
            unexplained_correlation=np.empty(0),
            differ_apart=_NO_PAIRS,
        )

    def over(self, kept: Index) -> "Confidence":
        """Of some columns, ascending, of which every variable has at least one: `Evidence.lines`, or among these."""
        d, place = len(self.variance), np.full(len(self.variance), -1)
        place[kept] = np.arange(len(kept))
        left = np.ones(d, dtype=bool)
        left[kept] = False
        told = self.without_edges_at(left)

        def among(pairs: Index) -> Index:
            return np.asarray(place[pairs[(place[pairs] >= 0).all(axis=1)]]).reshape(-1, 2)

        both, odd_in = np.ix_(kept, kept), among(self.odd_in)
        return replace(
            told,
            edges=place[told.edges],
            variance=self.variance[kept],
            residual_variance=self.residual_variance[kept],
            residual_correlation=self.residual_correlation[both]
            if self.residual_correlation.size
            else np.empty((0, 0)),
            log_variance_error=self.log_variance_error[kept],
            unexplained=place[self.unexplained],
            related=self.related[~self.related[:, left].any(axis=1)][:, kept],
            exact=self.exact[~self.related[:, left].any(axis=1)],
            differ_apart=among(self.differ_apart),
            odd_site=self.odd_site if len(odd_in) else "",
            odd_in=odd_in,
            widening=self.widening[both] if self.widening.size else self.widening,
            icc=self.icc[:, kept] if self.icc.size else self.icc,
        )

    def with_lines_of(self, other: "Confidence") -> "Confidence":
        """With the coefficients of another one that has the same edges, their errors, and how sites differ in them."""
        told = ("sites", "standard_error", "site_estimate", "site_error", "q", "degrees")
        odd = ("differ_apart", "odd_site", "odd_in")
        found = replace(self, **{name: getattr(other, name) for name in (*told, *odd)})
        # What the search has found without a site says nothing of another one.
        return found if other.odd_site == self.odd_site else replace(found, odd_lost=_NO_PAIRS, odd_gained=_NO_PAIRS)

    def along_edges_of(self, other: "Confidence") -> "Confidence":
        """With the coefficients of another graph of the same class, their errors, and what it leaves of the columns."""
        of_edges = ("edges", "sites", "standard_error", "site_estimate", "site_error", "q", "degrees")
        left = ("residual_variance", "residual_correlation", "log_variance_error")
        return replace(self, **{name: getattr(other, name) for name in (*of_edges, *left)})

    def without_edges_at(self, apart: Mask) -> "Confidence":
        """Without errors of coefficients at some of the (d,) columns, of which nothing is known."""
        told = ~apart[self.edges].any(axis=1)
        if told.all():
            return self
        return replace(
            self,
            edges=self.edges[told],
            standard_error=self.standard_error[told],
            site_estimate=self.site_estimate[:, told],
            site_error=self.site_error[:, told],
            q=self.q[told],
            degrees=self.degrees[told],
        )


@dataclass(frozen=True, eq=False)
class Evidence:
    """The moments that a graph was found in."""

    # moments, accuracy: (d, d) pooled moments, NaN where they are unknown, and their errors. Noise may make them
    # far from positive: then those that the graph says.
    moments: Matrix
    accuracy: Accuracy
    # (E,) standard errors of the weights, where they do not follow from the accuracy of the moments
    weight_error: Matrix | None = None
    # (d, d) moments as they came, for what the graph does not explain and for the centre of draws; None:
    # `moments`
    seen: Matrix | None = None
    # moments of each site by its name; empty: they are not known
    sites: Mapping[str, SiteMoments] = field(default_factory=dict[str, SiteMoments])
    # of these sites in the pooled moments, in their order; empty: these are no weighted mean of them, so that
    # none can be left out
    weights: Sequence[float] = ()
    # (d,) variances of columns of zeros and ones, in squared units of the table; NaN: another column. None: all
    # are other columns.
    level_variance: Matrix | None = None
    # (d,) columns that are asked for dependence without an edge; None: all
    lines: Mask | None = None


@dataclass(frozen=True, eq=False)
class Again:
    """The search that found a graph, ready to be run on draws and without a site."""

    search: Search  # on other moments
    # the (V, V) marks of the class of a DAG, with knowledge: both ways where it is undirected
    class_of: Callable[[Mask], Mask]
    # draws, rng: draws of the bootstrap, and what they are drawn with
    draws: int
    rng: np.random.Generator
    # (V, V) graphs that each draw is asked about, the graph itself first; None: they are searched before
    rivals: Sequence[Mask] | None = None


def confidence_of(
    dag: Mask,
    evidence: Evidence,
    columns: Columns,
    again: Again | None,
    *,
    shares: Shares | None = None,
    known: Known | None = None,
    progress: Progress = UNWATCHED,
) -> Confidence:
    """Every number of confidence in a graph that a search has found.

    Parameters
    ----------
    dag
        (V, V) the graph.
    again
        None: the search is not run again, neither on draws nor without a site.
    shares
        What draws that were made otherwise have; None: there are none.
    known
        Of causes, for the partial ancestral graph; None: it is not asked for.
    progress
        See `Draws`. Once it is enough, the numbers of draws and of searches without a site are smaller.
    """
    moments, accuracy = evidence.moments, evidence.accuracy
    network = fitted(dag, moments, columns)
    told_marks = known is not None and len(dag) <= MOST_VARIABLES and tells_enough(accuracy)
    pags = Pags(accuracy, columns, known, network, evidence.lines) if known is not None and told_marks else None
    several = list(evidence.sites.values()) if len(evidence.sites) > 1 else []
    weights = evidence.weights if several else ()
    errors = evidence.weight_error
    if errors is None:
        errors = standard_errors(network, moments, accuracy, sites=several if weights else (), weights=weights)
    agreement = site_agreement(network, moments, several, columns, evidence.level_variance) if several else None
    estimates = site_errors = np.empty((0, len(errors)))
    q, degrees = np.zeros(len(errors)), np.zeros(len(errors), dtype=np.int64)
    odd, odd_in, odd_lost, odd_gained = None, _NO_PAIRS, _NO_PAIRS, _NO_PAIRS
    if agreement is not None:
        estimates, site_errors = agreement.of_edges()
        q, degrees = agreement.q()
        odd = agreement.odd_site()
        odd_in = _NO_PAIRS if odd is None else agreement.where_odd(odd)
    told = len(several) if len(several) <= _MOST_TOLD else 0
    draws = 0 if again is None else again.draws
    counts, asked = np.zeros((*dag.shape, 4), dtype=np.int64), [dag]
    led = np.zeros((0, 0), dtype=np.int64)
    if again is not None and draws:
        generators = again.rng.spawn(draws)
        drawn = Draws(
            network,
            moments,
            accuracy,
            dag,
            again.search,
            again.class_of,
            generators,
            evidence.seen,
            None if len(dag) > MOST_DRAWN else pags,
        )
        asked = drawn.rivals(progress=progress) if again.rivals is None else list(again.rivals)
        shares = drawn.shares(asked, progress=progress)
    if shares is not None:
        draws, led = shares.draws, shares.leading
        counts[..., :3] = np.stack([shares.adjacent, shares.directed, shares.directed.T], axis=-1)
    left_out = 0
    if again is not None and weights and len(several) <= MOST_LEFT_OUT:
        kept = kept_without_a_site(several, weights, asked, again.search, progress=progress)
        left_out, counts[..., 3] = len(kept), sum(kept.values(), np.zeros(dag.shape, dtype=np.int64))
        if odd in kept:
            odd_lost = np.argwhere(np.triu((dag | dag.T) & ~kept[odd]))
            odd_gained = np.argwhere(np.triu(kept[odd] & ~(dag | dag.T)))
    tied = relations(dag if not accuracy.noise_std else np.zeros_like(dag), moments, columns)
    counts[..., 1:3] *= ~functions(tied.members, tied.exact, columns)[:, :, None]
    edges, of_exact = edges_of(network.dag), tied.members[tied.exact]
    errors = np.where((of_exact[:, edges[:, 0]] & of_exact[:, edges[:, 1]]).any(axis=0), np.nan, errors)
    pairs = np.argwhere(np.triu(counts.any(axis=-1), k=1))
    drawn_pags = () if shares is None else shares.pags
    spread = np.sqrt(network.residual_variance)
    n_apart, unexplained, correlations = _unexplained(network, evidence, columns)
    return Confidence(
        n_samples=accuracy.n_samples,
        noise_std=accuracy.noise_std,
        edges=edges,
        standard_error=errors,
        variance=moments.diagonal().copy(),
        residual_variance=network.residual_variance.copy(),
        residual_correlation=network.residual_covariance / spread / spread[:, None]
        if columns.has_blocks
        else np.empty((0, 0)),
        log_variance_error=log_variance_errors(network, accuracy),
        sites=tuple(evidence.sites)[:told],
        site_estimate=estimates[:told],
        site_error=site_errors[:told],
        q=q,
        degrees=degrees,
        differ_apart=_NO_PAIRS if agreement is None else agreement.differing(),
        odd_site="" if odd is None else list(evidence.sites)[odd],
        odd_in=odd_in,
        odd_lost=odd_lost,
        odd_gained=odd_gained,
        draws=draws,
        left_out=left_out,
        pairs=pairs,
        counts=counts[pairs[:, 0], pairs[:, 1]],
        leading=np.argwhere(led),
        led=led[led > 0],
        n_apart=n_apart,
        unexplained=unexplained[:_MOST_UNEXPLAINED],
        unexplained_correlation=correlations[:_MOST_UNEXPLAINED],
        n_unexplained=len(unexplained),
        related=tied.members,
        exact=tied.exact,
        widening=np.empty((0, 0)) if accuracy.widening is None else accuracy.widening,
        **_of_dependent_rows(network, evidence),
        **({} if pags is None else _of_pag(pags.found(dag, moments, evidence.seen), drawn_pags, pags.known)),
    )


def _of_pag(found: Found, drawn: Sequence[Marks], known: Known) -> dict[str, Any]:
    """What `Confidence` says of a partial ancestral graph and those of the draws."""
    pag, of_draws = found.marks, [Adjustments(one) for one in drawn if is_legal(one, known)]
    legal = not found.untested.any() and is_legal(pag, known)
    sets = list(Adjustments(pag).identified()) if legal and drawn else []
    marks = np.array(drawn, dtype=np.int8).reshape(-1, *pag.shape)
    kept = slice(None if drawn else 0)
    return {
        "pag": pag,
        "pag_is_legal": legal,
        "pag_untested": np.argwhere(np.triu(found.untested)),
        "pag_counts": np.stack([(marks == m).sum(axis=0) for m in range(4)], axis=-1)[kept, kept],
        "pag_headed": ((marks == ARROW) & (marks.transpose(0, 2, 1) == ARROW)).sum(axis=0)[kept, kept],
        "no_path_counts": sum((~one.may_act() for one in of_draws), np.zeros(pag.shape, dtype=np.int64))[kept, kept],
        "adjusted": np.array([(a, b) for a, b, _ in sets], dtype=np.int64).reshape(-1, 2),
        "adjusted_counts": np.array(
            [sum(one.has_set([a], b, given) for one in of_draws) for a, b, given in sets], dtype=np.int64
        ),
    }


def _of_dependent_rows(network: LinearNetwork, evidence: Evidence) -> dict[str, Any]:
    """What `Confidence` says of rows that depend on each other; nothing where they do not."""
    rows = evidence.accuracy.dependent
    if rows is None:
        return {}
    of_residuals = icc(network.between_residuals(rows), network.residual_covariance)
    of_columns = icc(rows.between, evidence.moments)
    return {
        "others": rows.others,
        "counted": evidence.accuracy.counted,
        "icc": np.stack([of_columns, of_residuals]),
    }


def _unexplained(network: LinearNetwork, evidence: Evidence, columns: Columns) -> tuple[int, Index, Matrix]:
    """How many pairs of columns have no edge, and those whose residuals are correlated beyond error, and how much."""
    moments, accuracy = evidence.moments, evidence.accuracy
    seen = moments if evidence.seen is None else evidence.seen
    size = np.sqrt(network.residual_variance)
    R = network.of_residuals(seen) / size / size[:, None]
    if not accuracy.noise_std:  # of what others determine, rounding is left
        R[network.residual_variance < SINGULAR * moments.diagonal()] = np.nan
        R[:, network.residual_variance < SINGULAR * moments.diagonal()] = np.nan
    apart = np.triu(~(network.dag | network.dag.T | columns.within()) & np.isfinite(R), k=1)
    if evidence.lines is not None:
        apart &= evidence.lines[:, None] & evidence.lines
    i, j = np.nonzero(apart)
    p = holm(tails(R[i, j] / correlation_errors(network, moments, accuracy)[i, j]))
    order = np.argsort(-np.abs(R[i, j]), kind="stable")
    order = order[p[order] < _LEVEL]
    return len(i), np.column_stack((i, j))[order], R[i, j][order]
