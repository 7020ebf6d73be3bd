"""Edges that hidden common causes make, and what the rest says of cause and effect if there are such causes.

A search for a DAG adds edges where a hidden cause ties two variables: what acts on one of them gets an edge to the
other. Such an edge lies in a triangle. It is tested away, as FCIT does (Ramsey 2025), by a set that blocks every other
path of the present graph; what is left is closed under the rules of `pag`.

An edge may not be testable: moments or tables of counts lack, or noise hides what the test would show. It stays, with
circles, and no rule concludes anything from it. Where noise hides too much, nothing is told (`tells_enough`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.meek import bits, numbers_of
from fedbnsl.graphs.pag import ARROW, NONE, TAIL, Known, Marks, PartialAncestralGraph, Triple
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.inference.heterogeneity import chi_square_tails
from fedbnsl_server.search.linear_network import SINGULAR, Accuracy, LinearNetwork, fitted, inverse

LEVEL = 0.05
"""An edge goes if a set gives its ends a larger p value."""
_MOST_SHUT = 5
"""Common neighbours of an edge's ends of which all subsets are tried."""
MOST_VARIABLES = 200
"""With more, nothing is told."""
MOST_DRAWN = 60
"""With more, the marks of bootstrap draws are not counted."""
POWER = 0.8
"""An edge goes only if a test would show it, as strong as the graph says, with at least this probability."""
_STANDS_OUT = 2.8
"""A correlation of so many standard errors is shown with this power."""
_LEAST_SHOWN = 0.075
"""Where noise hides larger correlations, nothing is told: marks would be hardly more often right than arrows."""


def least_shown(accuracy: Accuracy) -> float:
    """The least correlation of two residuals that a test shows with a power of 80 %."""
    return _STANDS_OUT * math.hypot(accuracy.noise_std, 1.0 / math.sqrt(accuracy.n_samples))


def tells_enough(accuracy: Accuracy) -> bool:
    """Whether marks are told in spite of the noise."""
    return not accuracy.noise_std or least_shown(accuracy) <= _LEAST_SHOWN


class Found(NamedTuple):
    """A partial ancestral graph."""

    marks: Marks  # (V, V)
    untested: Mask  # (V, V) symmetric edges of which no test tells whether they are any


@dataclass(frozen=True, eq=False)
class Pags:
    """Partial ancestral graphs of what searches in moments of one accuracy have explained by DAGs."""

    accuracy: Accuracy
    columns: Columns
    known: Known
    # network, lines: with noise alone: whose residuals have it, and (d,) the columns that are tested; None: all
    network: LinearNetwork | None = None
    lines: Mask | None = None

    def __call__(self, dag: Mask, S: Matrix) -> Marks:
        """(V, V) the marks; `S`: (d, d) the moments that the (V, V) DAG was found in, NaN where they are not known."""
        return self.found(dag, S).marks

    def found(self, dag: Mask, S: Matrix, seen: Matrix | None = None) -> Found:
        """The marks and what could not be tested; `seen`: (d, d) moments as they came, see `Evidence`."""
        if not self.accuracy.noise_std or self.network is None:
            tests: Tests = Dependence(S, self.accuracy, self.columns)
        else:
            own = fitted(dag, S, self.columns)
            members = self.columns.members()
            if self.lines is not None:
                members = [of_one[self.lines[of_one]] for of_one in members]
            expected = own.of_columns(own.residual_covariance)
            tests = NoisyDependence(expected, S if seen is None else seen, self.accuracy, self.network, members)
        return found_by(dag, tests, self.known)


def found_by(dag: Mask, tests: "Tests", known: Known) -> Found:
    """The partial ancestral graph of what a (V, V) DAG and tests say."""
    removal = _Removal(dag, tests, known)
    return Found(removal.found(), removal.unsure)


def power(noncentral: float, degrees: int) -> float:
    """Probability that a chi-square test at `LEVEL` shows so large an effect."""
    from scipy.special import chdtri, chndtr  # here: takes long to load

    return 1.0 - float(chndtr(chdtri(degrees, LEVEL), degrees, noncentral))


class Tests(Protocol):
    """Whether variables depend on each other given others."""

    def p_value(self, x: int, y: int, given: Sequence[int]) -> float | None:
        """Of the hypothesis that the variables x and y are independent given others; None: nothing tells."""
        ...

    def shows(self, x: int, y: int, others: Sequence[int], given: Sequence[int]) -> bool:
        """Whether a test given some variables shows an edge x -> y; `others`: what else acts on y in the graph."""
        ...


class NoisyDependence:
    """Tests of partial covariance in moments with the noise of a private run, by the delta method.

    With regressions a and b of x and y on the others, by the moments M that the graph says, a'Sb of the moments S as
    they came is 0 up to its error; errors of a and b count by their product alone. Its variance is that of sampling,
    a'Ma b'Mb / n, and that of noise N of the residuals, of which S has back' N back.

    Parameters
    ----------
    expected, seen
        (d, d) M and S.
    network
        Whose residuals the noise of `accuracy` is in.
    members
        The columns of every variable.
    """

    def __init__(
        self,
        expected: Matrix,
        seen: Matrix,
        accuracy: Accuracy,
        network: LinearNetwork,
        members: Sequence[Index],
    ) -> None:
        self._expected, self._seen, self._members = expected, seen, members
        self._n_samples = accuracy.counted
        self._to_noise = math.sqrt(accuracy.noise_std) * network.units(accuracy)[:, None] * network.back

    def p_value(self, x: int, y: int, given: Sequence[int]) -> float:
        """0 where the variables are functions of each other: no set separates them."""
        tested = self._tested(x, y, given)
        return 0.0 if tested is None else float(chi_square_tails(tested.statistic, tested.degrees)[0])

    def shows(self, x: int, y: int, others: Sequence[int], given: Sequence[int]) -> bool:
        """By the power of the test: x moves y by the weight of the edge, as far as `given` leaves x to move."""
        M, parents = self._expected, np.concatenate([self._members[k] for k in (x, *others)])
        weights = inverse(M[np.ix_(parents, parents)]) @ M[np.ix_(parents, self._members[y])]
        tested = self._tested(x, y, given, weights[: len(self._members[x])])
        return tested is not None and power(float(tested.by_edge[0]), int(tested.degrees[0])) >= POWER

    def _tested(self, x: int, y: int, given: Sequence[int], weights: Matrix | None = None) -> "_Tested | None":
        """`weights`: of the edge that the test should show."""
        M, none = self._expected, np.empty(0, dtype=np.int64)
        others = np.concatenate([none, *(self._members[k] for k in given)])
        inverted = inverse(M[np.ix_(others, others)])

        def regression(own: Index) -> Matrix:
            found = np.zeros((len(M), len(own)))
            found[own, np.arange(len(own))] = 1.0
            found[others] = -inverted @ M[np.ix_(others, own)]
            return found

        a, b = (regression(self._members[k]) for k in (x, y))
        noise_a, noise_b = self._to_noise @ a, self._to_noise @ b
        crossed, size = noise_a.T @ noise_b, a.shape[1] * b.shape[1]
        # Entry (i, j) of the noise and (j, i) are one number, so that u'Nw and s'Nt covary by u's w't + u't w's.
        noise = np.kron(noise_a.T @ noise_a, noise_b.T @ noise_b)
        noise += np.einsum("il,kj->ijkl", crossed, crossed).reshape(size, size)
        sampling = np.kron(a.T @ M @ a, b.T @ M @ b) / max(self._n_samples - len(others) - 1.0, 1.0)
        variance = sampling + noise
        scale = np.sqrt(np.maximum(variance.diagonal(), np.finfo(np.float64).tiny))
        values, vectors = np.linalg.eigh(variance / scale / scale[:, None])
        if values[0] < SINGULAR:
            return None
        by_edge = np.zeros((a.shape[1], b.shape[1])) if weights is None else a.T @ M @ a @ weights
        both = (vectors.T @ (one.ravel() / scale) for one in (a.T @ self._seen @ b, by_edge))
        statistic, noncentral = (np.array([(one**2 / values).sum()]) for one in both)
        return _Tested(statistic, noncentral, np.array([size]))


class _Tested(NamedTuple):
    """(1,) chi-square: of the moments as they came, and of an edge, with their degrees of freedom."""

    statistic: Matrix
    by_edge: Matrix
    degrees: Index


class Dependence:
    """Tests of partial correlation between variables, each of one column or of several.

    Parameters
    ----------
    S
        (d, d) second moments; NaN where they are not known: then nothing is independent.
    """

    def __init__(self, S: Matrix, accuracy: Accuracy, columns: Columns) -> None:
        size = np.sqrt(S.diagonal())
        size = np.where(size > 0.0, size, 1.0)
        self._R = S / size / size[:, None]
        self._accuracy, self._of = accuracy, columns.members()

    def p_value(self, x: int, y: int, given: Sequence[int]) -> float | None:
        """Of the likelihood ratio, with Bartlett's factor; None where moments lack, or rows."""
        one, other = self._of[x], self._of[y]
        p, m = len(one), len(one) + len(other)
        places = np.concatenate((one, other, *(self._of[k] for k in given)))
        R, n = self._R[np.ix_(places, places)], self._accuracy.counted
        if self._accuracy.widening is not None:
            n /= float(self._accuracy.widening[np.ix_(places, places)].max()) ** 2
        records = n - (len(places) - m) - 1.0 - (m + 1.0) / 2.0
        if not np.isfinite(R).all() or records < 1.0:
            return None
        C = R[:m, :m] - R[:m, m:] @ inverse(R[m:, m:]) @ R[m:, :m] if given else R
        parts = [np.linalg.eigvalsh(part) for part in (C[:p, :p], C[p:, p:], C)]
        if min(part[0] for part in parts) < SINGULAR:  # functions of each other: no set separates them
            return 0.0
        a, b, both = (float(np.log(part).sum()) for part in parts)
        fall = np.array([max(records * (a + b - both), 0.0)])
        return float(chi_square_tails(fall, np.array([p * (m - p)]))[0])

    def shows(self, x: int, y: int, others: Sequence[int], given: Sequence[int]) -> bool:
        """Whatever the search has found: it has the same errors."""
        return True


class _Removal:
    """Tests edges away, and keeps by which set."""

    def __init__(self, dag: Mask, tests: Tests, known: Known) -> None:
        self.dag, self.tests, self.known = dag, tests, known
        self.adjacent = dag | dag.T
        self.unsure = np.zeros_like(dag)
        self.sets: dict[tuple[int, int], tuple[int, ...]] = {}
        self._below = arrows_lead(dag)

    def found(self) -> Marks:
        graph, changed = self.oriented(), True
        while changed:
            changed = False
            asked = self.adjacent & ~self.unsure & ~self.known.cause & ~self.known.cause.T
            for x, y in np.argwhere(np.triu(asked)).tolist():
                if not (self.adjacent[x] & self.adjacent[y]).any():
                    continue  # a hidden cause has made a triangle of it
                given, all_known = self._separator(graph.marks, x, y)
                if given is None and all_known:
                    continue
                if given is not None and self._shown(x, y, given):
                    self.adjacent[x, y] = self.adjacent[y, x] = False
                    self.sets[x, y] = self.sets[y, x] = given
                else:
                    self.unsure[x, y] = self.unsure[y, x] = True
                graph, changed = self.oriented(), True
        return graph.with_tails()

    def oriented(self) -> PartialAncestralGraph:
        return PartialAncestralGraph(self.adjacent, self._colliders(), self._separates, self.known, self.unsure)

    def _shown(self, x: int, y: int, given: Sequence[int]) -> bool:
        """Whether tests given these, and given what else acts on its end in the DAG, would show the edge."""
        source, target = (x, y) if self.dag[x, y] else (y, x)
        others = np.flatnonzero(self.dag[:, target]).tolist()
        others.remove(source)
        return all(self.tests.shows(source, target, others, one) for one in (others, given))

    def _colliders(self) -> Iterator[Triple]:
        for b in range(len(self.dag)):
            near = np.flatnonzero(self.adjacent[b]).tolist()
            for a, c in combinations(near, 2):
                if not self.adjacent[a, c] and not self._separates(a, b, c):
                    yield a, b, c

    def _separates(self, a: int, b: int, c: int) -> bool:
        """Whether b is in the set that separates a and c."""
        if (a, c) in self.sets:
            return b in self.sets[a, c]
        # Without an edge in the DAG, the parents of the later one separate them.
        later = a if self._below[c, a] else c
        return bool(self.dag[b, later])

    def _separator(self, marks: Marks, x: int, y: int) -> tuple[tuple[int, ...] | None, bool]:
        """A set given which x and y look independent, or None; and whether all sets before it could be tested."""
        common = np.flatnonzero(self.adjacent[x] & self.adjacent[y]).tolist()
        causes = {c for c in common if marks[x, c] == TAIL or marks[y, c] == TAIL}
        present = Mixed(self.dag & self.adjacent, marks)
        sizes: Sequence[int] = range(len(common) + 1)
        if len(common) > _MOST_SHUT:
            sizes = (1, 2, len(common) - 1, len(common))
        all_known = True
        for size in sizes:
            for shut in combinations(common, size):
                given = [tuple(bits(one)) for one in present.separators(x, y, shut)]
                p_values = [self.tests.p_value(x, y, one) for one in given]
                p = [0.0 if one is None else one for one in p_values]
                all_known &= None not in p_values
                # One set alone may hide an edge, where paths cancel: so against what is directed, all of them must.
                if p and (min if causes.intersection(shut) else max)(p) > LEVEL:
                    return given[p.index(max(p))], all_known
        return None, all_known


class Mixed:
    """A mixed graph that a DAG and the marks give: what the marks leave open has the direction of the DAG.

    Sets of nodes are whole numbers, bit k for node k.
    """

    def __init__(self, dag: Mask, marks: Marks) -> None:
        both = dag & (marks.T == ARROW)
        self.children, self.parents = numbers_of(dag & ~both), numbers_of((dag & ~both).T)
        self.spouses = numbers_of(both | both.T)

    @classmethod
    def of_marks(cls, marks: Marks) -> "Mixed":
        """That of (V, V) marks without circles."""
        return cls((marks == ARROW) & (marks.T != NONE), marks)

    def separators(self, x: int, y: int, shut: Sequence[int]) -> Iterator[int]:
        """Sets that block all paths but the edge between x and y, if neither these nodes nor x and y act on the other.

        The ancestors block them, if any set does (van der Zander, Liskiewicz and Textor 2019): those near x, those near
        y, and all of them.
        """
        other = self._with_colliders(x, y, shut)
        ends = 1 << x | 1 << y
        closed = sum(1 << c for c in shut)
        within = other.ancestors(ends) & ~ends & ~closed
        for one, far in ((x, y), (y, x)):
            seen = other.reached(one, within)
            if seen >> far & 1:
                return
            yield within & seen
        yield within

    def _with_colliders(self, x: int, y: int, shut: Sequence[int]) -> "Mixed":
        """Without the edge between x and y, and with arrowheads at other nodes on the edges to x and y."""
        other = object.__new__(Mixed)
        other.children, other.parents, other.spouses = self.children.copy(), self.parents.copy(), self.spouses.copy()
        for a, b in ((x, y), (y, x)):
            for sets in (other.children, other.parents, other.spouses):
                sets[a] &= ~(1 << b)
            for c in shut:
                if other.parents[a] >> c & 1:  # c -> a becomes c <-> a
                    other.parents[a] &= ~(1 << c)
                    other.children[c] &= ~(1 << a)
                    other.spouses[a] |= 1 << c
                    other.spouses[c] |= 1 << a
        return other

    def ancestors(self, nodes: int) -> int:
        """Nodes with a directed path to some of these, and these."""
        found, waiting = nodes, nodes
        while waiting:
            further = 0
            for k in bits(waiting):
                further |= self.parents[k]
            waiting = further & ~found
            found |= further
        return found

    def reached(self, x: int, given: int) -> int:
        """Nodes that a path leads to from x which a set does not block before, those of the set among them."""
        opens = self.ancestors(given)
        by_head, by_tail = self.children[x] | self.spouses[x], self.parents[x]
        heads = tails = 1 << x
        while (new := (by_head & ~heads)) | (others := by_tail & ~tails):
            heads, tails = heads | new, tails | others
            by_head = by_tail = 0
            for v in bits(new):
                if opens >> v & 1:
                    by_tail |= self.parents[v]
                    by_head |= self.spouses[v]
                if not given >> v & 1:
                    by_head |= self.children[v]
            for v in bits(others & ~given):
                by_head |= self.children[v] | self.spouses[v]
                by_tail |= self.parents[v]
        return (heads | tails) & ~(1 << x)
