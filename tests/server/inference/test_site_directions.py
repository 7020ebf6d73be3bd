"""Directions that sites tell where their mechanisms differ, and those that they must not tell."""

from collections.abc import Callable

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.graphs.pag import ARROW, CIRCLE, Marks
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.losses.squared_residuals import products_of_squares
from fedbnsl_server.inference.site_directions import OfSites, _Evidence, _evidence, _Member, site_directions
from fedbnsl_server.inference.site_mechanisms import Mechanism, Mechanisms
from fedbnsl_server.search.linear_network import Accuracy, SiteMoments
from fedbnsl_server.search.squared_residuals import SquaredResiduals

SITES, ROWS = 6, 800
NO_PAG: Marks = np.zeros((0, 0), dtype=np.int8)
Draw = Callable[[np.random.Generator, tuple[int, int]], Matrix]
NOISE: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t3": lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3.0),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1.0,
}


def ask(
    tables: list[Matrix], marks: Mask, *, pag: Marks = NO_PAG, set_at: dict[int, list[int]] | None = None
) -> OfSites:
    W, S = np.zeros(marks.shape), np.concatenate(tables)
    sites = [
        SiteMoments(X.T @ X / len(X), Accuracy(len(X) - 1.0), SquaredResiduals(W, products_of_squares(X, W)))
        for X in tables
    ]
    targets = np.zeros((len(tables), len(marks)), dtype=bool)
    for p, variables in (set_at or {}).items():
        targets[p, variables] = True
    apart = {k: frozenset(np.flatnonzero(targets[:, k]).tolist()) for k in range(len(marks))}
    return site_directions(
        marks,
        pag,
        Mechanisms(S.T @ S / len(S), sites, apart),
        variables=[f"v{k}" for k in range(len(marks))],
        sites=[f"site-{p}" for p in range(len(tables))],
        targets=targets,
    )


def chain(
    rng: np.random.Generator, *, noise: str = "normal", scales: dict[int, tuple[float, float]] | None = None
) -> list[Matrix]:
    """Tables of v0 -> v1; `scales`: by site, what the noise of v0 and of v1 is multiplied by."""
    found: list[Matrix] = []
    for p in range(SITES):
        e = NOISE[noise](rng, (ROWS, 2)) * np.array((scales or {}).get(p, (1.0, 1.0)))
        X = np.column_stack((e[:, 0], 0.8 * e[:, 0] + e[:, 1]))
        found.append(X - X.mean(axis=0))
    return found


PAIR = cpdag(np.array([[False, True], [False, False]]))


def arrows(found: OfSites) -> list[tuple[str, str]]:
    return [(one.source, one.target) for one in found.told]


@pytest.mark.parametrize("noise", sorted(NOISE))
def test_sites_that_are_alike_tell_nothing(noise: str) -> None:
    rng = np.random.default_rng(10)
    told = [arrows(ask(chain(rng, noise=noise), PAIR)) for _ in range(30)]
    assert told == [[]] * 30


@pytest.mark.parametrize("noise", sorted(NOISE))
def test_a_cause_that_moves_while_the_law_of_its_effect_stays_is_told(noise: str) -> None:
    rng = np.random.default_rng(11)
    told = [ask(chain(rng, noise=noise, scales={2: (3.0, 1.0)}), PAIR) for _ in range(10)]
    found = [one for several in told for one in several.told]
    assert {(one.source, one.target) for one in found} == {("v0", "v1")}
    assert len(found) >= (9 if noise == "normal" else 4)
    assert found[0].by == "sites"
    assert found[0].evidence["sites"] == ["site-2"]
    assert found[0].evidence["log_likelihood"] > 5.0


def test_a_mechanism_that_differs_at_the_effect_alone_tells_nothing() -> None:
    """v0 by itself and v1 given v0 are then what they would be if the two had a hidden cause and nothing else."""
    rng = np.random.default_rng(12)
    assert arrows(ask(chain(rng, scales={2: (1.0, 3.0)}), PAIR)) == []


@pytest.mark.parametrize("moved", [0, 1])
def test_a_shift_beside_a_hidden_cause_tells_nothing(moved: int) -> None:
    rng = np.random.default_rng(13)
    for _ in range(10):
        tables: list[Matrix] = []
        for p in range(SITES):
            e = rng.standard_normal((ROWS, 3))
            e[:, moved] *= 3.0 if p == 2 else 1.0
            X = np.column_stack((e[:, 2] + e[:, 0], e[:, 2] + e[:, 1]))
            tables.append(X - X.mean(axis=0))
        assert arrows(ask(tables, PAIR)) == []


def test_sites_that_do_not_agree_tell_nothing() -> None:
    rng = np.random.default_rng(14)
    tables = chain(rng, scales={2: (3.0, 1.0)})
    assert arrows(ask(tables, PAIR)) == [("v0", "v1")]
    v1 = 3.0 * np.sqrt(1.64) * rng.standard_normal(ROWS)  # v1 moves, and the law of v0 given v1 stays
    tables[3] = np.column_stack((0.8 / 1.64 * v1 + np.sqrt(1.0 / 1.64) * rng.standard_normal(ROWS), v1))
    assert arrows(ask(tables, PAIR)) == []


def test_a_direction_that_the_partial_ancestral_graph_excludes_is_not_told() -> None:
    rng = np.random.default_rng(15)
    tables = chain(rng, scales={2: (3.0, 1.0)})
    open_ends = np.array([[0, CIRCLE], [CIRCLE, 0]], dtype=np.int8)
    assert arrows(ask(tables, PAIR, pag=open_ends)) == [("v0", "v1")]
    headed = np.array([[0, CIRCLE], [ARROW, 0]], dtype=np.int8)  # v0 is no cause of v1
    assert arrows(ask(tables, PAIR, pag=headed)) == []
    assert arrows(ask(tables, PAIR, pag=np.zeros((2, 2), dtype=np.int8))) == []


def test_what_was_set_directs_by_interventions() -> None:
    rng = np.random.default_rng(16)
    tables = chain(rng, scales={2: (3.0, 1.0)})
    found = ask(tables, PAIR, set_at={2: [0]})
    assert [(one.source, one.target, one.by) for one in found.told] == [("v0", "v1", "interventions")]
    # Where v1 is set, v0 stays as it is, and nothing follows from v1: v0 need not act on it.
    cut = chain(rng)
    cut[2] = np.column_stack((cut[2][:, 0], rng.standard_normal(ROWS)))
    assert arrows(ask(cut, PAIR, set_at={2: [1]})) == []


def test_members_of_a_class_have_equal_pooled_likelihoods() -> None:
    """With no parameters of their own, sites prefer none: the whole difference comes from those that have them."""
    rng = np.random.default_rng(17)
    X = np.concatenate(chain(rng))
    S = X.T @ X / len(X)
    one = np.log(S[0, 0]) + np.log(S[1, 1] - S[0, 1] ** 2 / S[0, 0])
    other = np.log(S[1, 1]) + np.log(S[0, 0] - S[0, 1] ** 2 / S[1, 1])
    assert one == pytest.approx(other)


def test_of_too_many_members_none_is_compared() -> None:
    d = 8  # 8! members
    full = np.triu(np.ones((d, d), dtype=bool), 1)
    rng = np.random.default_rng(18)
    found = ask([rng.standard_normal((100, d)) for _ in range(3)], cpdag(full))
    assert (found.n_open, found.n_compared, found.told) == (d * (d - 1) // 2, 0, ())


# ---- what is asked of the members of a class, three sites, by hand -------------------------------------------------

NOTHING = (0.0, 0.0, 0.0)


def mechanism(evidence: tuple[float, ...], told: tuple[bool, ...] = (True, True, True)) -> Mechanism:
    nothing = np.zeros((3, 1))
    return Mechanism(
        np.zeros(3), np.array(evidence), np.zeros(3, dtype=bool), np.array(told), nothing, nothing, nothing
    )


def said(
    *,
    gap: tuple[float, ...] = (8.0, 0.0, 0.0),
    source: tuple[float, ...] = (20.0, 0.0, 0.0),
    target: Mechanism | None = None,
    set_at: tuple[tuple[int, int], ...] = (),
) -> _Evidence | None:
    """Of v0 -> v1, where the other direction costs `gap` more at each site and v0 moved at the first."""
    there = np.array([[False, True], [False, False]])
    at_target = mechanism(NOTHING) if target is None else target
    targets = np.zeros((3, 2), dtype=bool)
    for place in set_at:
        targets[place] = True
    forward = _Member(there, {0: mechanism(source), 1: at_target}, np.ones(3))
    back = _Member(there.T, {0: mechanism(NOTHING), 1: mechanism(NOTHING)}, 1.0 + np.array(gap))
    found = _evidence([back, forward], 0, 1, targets)
    assert _evidence([back, forward], 1, 0, targets) is None, "the costlier direction"
    return found


def test_a_source_that_moved_where_the_law_of_its_target_stayed_directs_the_edge() -> None:
    found = said()
    assert found is not None
    assert found.gap.tolist() == [8.0, 0.0, 0.0]
    assert found.by == "sites"


@pytest.mark.parametrize(
    "target",
    [
        mechanism((4.0, 0.0, 0.0)),  # it may have moved, too
        mechanism(NOTHING, (False, True, True)),  # nothing is told of it there
    ],
)
def test_a_target_whose_law_is_not_seen_to_stay_at_that_site_directs_nothing(target: Mechanism) -> None:
    """With a hidden cause of both, the law of v1 given v0 would move with v0."""
    assert said(target=target) is None
    assert said(target=mechanism((3.9, 20.0, 20.0))) is not None, "elsewhere it may"


def test_a_source_that_hardly_moved_directs_nothing_unless_it_was_set() -> None:
    assert said(source=(11.9, 0.0, 0.0)) is None
    assert said(source=(0.0, 20.0, 0.0)) is None, "not where the members differ"
    assert said(source=NOTHING, set_at=((0, 0),)) is not None


def test_sites_must_not_disagree_by_more_than_chance() -> None:
    assert said(gap=(9.0, -2.9, 0.0)) is not None
    assert said(gap=(9.0, -3.1, 0.0)) is None


def test_the_site_where_the_source_moved_must_itself_prefer_the_direction() -> None:
    assert said(gap=(3.1, 2.9, 0.0)) is not None
    assert said(gap=(2.9, 3.1, 0.0)) is None


def test_all_sites_together_must_prefer_it_by_the_margin() -> None:
    assert said(gap=(4.9, 0.0, 0.0)) is None
    assert said(gap=(5.1, 0.0, 0.0)) is not None


def test_it_is_told_by_interventions_only_where_all_sites_that_prefer_it_had_one() -> None:
    both = {"gap": (8.0, 4.0, 0.0), "source": (20.0, 20.0, 0.0)}
    of_one, of_both = said(**both, set_at=((0, 0),)), said(**both, set_at=((0, 0), (1, 1)))
    assert of_one is not None
    assert of_one.by == "sites"
    assert of_both is not None
    assert of_both.by == "interventions"
    direction = of_both.as_direction("a", "b", ["north", "south", "east"])
    assert direction.evidence == {"log_likelihood": 12.0, "sites": ["north", "south"]}
    assert said(gap=(8.0, 2.9, 0.0), set_at=((0, 0),)).by == "interventions", "the second hardly prefers it"
