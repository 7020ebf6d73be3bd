"""Effects in networks of tables, against sums over all combinations of levels with the set variable cut off."""

from itertools import product

import numpy as np
import pytest

from fedbnsl.graphs.class_members import descendants, directed_at
from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.inference.interventions import Family, drawn, set_to, shares_of

LEVELS = {"a": 2, "b": 3, "c": 2, "d": 3, "e": 2}
NAMES = tuple(LEVELS)


def network(dag: Mask, rng: np.random.Generator) -> dict[str, Family]:
    found: dict[str, Family] = {}
    for x, name in enumerate(NAMES):
        parents = tuple(NAMES[p] for p in np.flatnonzero(dag[:, x]))
        shape = *(LEVELS[p] for p in parents), LEVELS[name]
        found[name] = Family(parents, 1000.0 * rng.dirichlet(np.ones(LEVELS[name]), shape[:-1]))
    return found


def cut_off(families: dict[str, Family], source: str, level: int, target: str) -> Matrix:
    found = np.zeros(LEVELS[target])
    for codes in product(*(range(k) for k in LEVELS.values())):
        at = dict(zip(NAMES, codes, strict=True))
        if at[source] != level:
            continue
        p = 1.0
        for name, one in families.items():
            if name != source:
                p *= one.counts[(*(at[v] for v in one.parents), at[name])] / 1000.0
        found[at[target]] += p
    return found


def random_dag(rng: np.random.Generator) -> Mask:
    order, dag = rng.permutation(5), np.triu(rng.random((5, 5)) < 0.6, k=1)
    return np.asarray(dag[np.ix_(np.argsort(order), np.argsort(order))])


@pytest.mark.parametrize("seed", range(12))
def test_setting_a_variable_is_cutting_it_off_from_its_parents(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dag = random_dag(rng)
    families = network(dag, rng)
    for a, source in enumerate(NAMES):
        for b, target in enumerate(NAMES):
            given = [NAMES[p] for p in np.flatnonzero(dag[:, a])]
            if a == b or target in given:
                continue
            told = set_to(families, source, given, target)
            expected = [cut_off(families, source, level, target) for level in range(LEVELS[source])]
            np.testing.assert_allclose(told, expected, atol=1e-12)
            if not descendants(dag, a)[b]:
                np.testing.assert_allclose(told, np.tile(shares_of(families, target), (LEVELS[source], 1)), atol=1e-12)


def test_another_dag_of_the_class_has_another_effect_by_the_same_tables() -> None:
    """a -> b -> c, also read as a <- b -> c: then setting b changes a, and no longer the other way round."""
    dag = np.zeros((5, 5), dtype=bool)
    dag[0, 1] = dag[1, 2] = True
    families = network(dag, np.random.default_rng(0))
    sets = {tuple(np.flatnonzero(graph[:, 1]).tolist()) for graph in directed_at(cpdag(dag), [1])}
    assert sets == {(), (0,), (2,)}
    joint = families["a"].counts[:, None] / 1000.0 * families["b"].counts / 1000.0
    np.testing.assert_allclose(set_to(families, "b", [], "a"), (joint / joint.sum(axis=0)).T)


def test_what_no_record_tells_is_left_out_and_missed() -> None:
    counts = np.array([[[30.0, 70.0], [0.0, 0.0]], [[50.0, 50.0], [10.0, 90.0]]])  # none where a and b are 0 and 1
    families = {
        "a": Family((), np.array([400.0, 600.0])),
        "b": Family((), np.array([900.0, 100.0])),
        "c": Family(("a", "b"), counts),
    }
    told = set_to(families, "a", [], "c")
    np.testing.assert_allclose(told, [[0.9 * 0.3, 0.9 * 0.7], [0.9 * 0.5 + 0.1 * 0.1, 0.9 * 0.5 + 0.1 * 0.9]])
    mediated = {"b": families["b"], "a": Family(("b",), np.array([[400.0, 500.0], [0.0, 100.0]])), "c": families["c"]}
    told = set_to(mediated, "a", ["b"], "c")
    assert told is not None
    assert told.sum(axis=1) == pytest.approx([0.9, 1.0]), "a is never 0 where b is 1"


def test_draws_scatter_as_samples_do() -> None:
    rng = np.random.default_rng(0)
    families = {"a": Family((), np.array([300.0, 700.0])), "b": Family(("a",), np.array([[60.0, 240.0], [0.0, 700.0]]))}
    told = np.array([set_to(drawn(families, rng), "a", [], "b") for _ in range(2000)])
    assert told[:, 0, 0].mean() == pytest.approx(0.2, abs=0.003)
    assert told[:, 0, 0].std() == pytest.approx(np.sqrt(0.2 * 0.8 / 300), rel=0.1)
    assert not told[:, 1, 0].any()


def test_a_table_that_is_too_large_is_not_made() -> None:
    names = [f"v{k}" for k in range(22)]
    families = {name: Family((), np.ones(2)) for name in names[:-1]}
    shape = np.broadcast_to(np.ones(1), (2,) * 22)
    families["v21"] = Family(tuple(names[:-1]), shape)
    assert set_to(families, "v0", names[1:21], "v21") is None
