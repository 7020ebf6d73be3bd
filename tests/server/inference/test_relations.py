"""Variables that are functions of each other are found as whole sets, whichever of them a graph takes for the child."""

from string import ascii_letters

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl_server.inference.relations import relations

RNG = np.random.default_rng(1)
N = 500


def indicators(codes: np.ndarray, n_levels: int) -> np.ndarray:
    return (codes[:, None] == np.arange(1, n_levels)).astype(float)


def found(blocks: dict[str, np.ndarray], edges: list[str]) -> list[tuple[set[str], bool]]:
    """Names of each set's columns and whether it is exact; edges as `ab` for a -> b."""
    parts = {name: X.reshape(N, -1) for name, X in blocks.items()}
    names = {
        name: [name] if X.shape[1] == 1 else [f"{name}{k + 1}" for k in range(X.shape[1])] for name, X in parts.items()
    }
    columns = Columns.of([c for of in names.values() for c in of], {c: name for name, of in names.items() for c in of})
    dag = np.zeros((len(parts), len(parts)), dtype=bool)
    for a, b in edges:
        dag[list(parts).index(a), list(parts).index(b)] = True
    X = np.hstack(list(parts.values()))
    X = X - X.mean(axis=0)
    told = relations(dag, (X.T @ X / N).astype(np.float32).astype(float), columns)
    return [
        ({columns.names[k] for k in np.flatnonzero(one)}, exact)
        for one, exact in zip(told.members, told.exact.tolist(), strict=True)
    ]


@pytest.mark.parametrize("child", "abct")
def test_all_parts_of_a_sum_are_named_and_nothing_beside(child: str) -> None:
    a, b, c, o = RNG.standard_normal((4, N)) * [[1], [30], [0.1], [1]]
    blocks = {"a": a, "b": b, "c": c, "t": a + b + c, "o": o + a}
    edges = [p + child for p in "abct" if p != child] + ["a" + "o", child + "o"]
    assert found(blocks, edges) == [({"a", "b", "c", "t"}, True)]


@pytest.mark.parametrize("edge", ["en", "ne"])
def test_a_number_that_codes_a_nominal_variable_is_named_with_it(edge: str) -> None:
    codes = RNG.integers(0, 5, N)
    blocks = {"e": indicators(codes, 5), "n": np.array([1.0, 2, 5, 7, 9])[codes]}
    assert found(blocks, [edge]) == [({"e1", "e2", "e3", "e4", "n"}, True)]


@pytest.mark.parametrize("edge", ["cr", "rc"])
def test_cities_within_regions_and_one_to_one_names_are_one_set(edge: str) -> None:
    city = RNG.integers(0, 6, N)
    blocks = {"c": indicators(city, 6), "r": indicators(city // 2, 3)}
    ((members, exact),) = found(blocks, [edge])
    assert exact
    assert {name[0] for name in members} == {"c", "r"}
    again = {"c": indicators(city, 6), "r": indicators((city + 2) % 6, 6)}
    ((members, _),) = found(again, [edge])
    assert len(members) == 10


def test_of_nominal_variables_that_share_one_level_only_that_level_is_named() -> None:
    w, o = RNG.integers(0, 4, N), RNG.integers(0, 5, N)
    w[o == 3] = 2
    o[(w == 2) & (o != 3)] = 3
    assert found({"w": indicators(w, 4), "o": indicators(o, 5), "x": w + RNG.standard_normal(N)}, ["wx", "ox"]) == [
        ({"w2", "o3"}, True)
    ]


def test_nearly_the_same_quantity_five_times_is_one_set_that_is_not_exact() -> None:
    z = RNG.standard_normal(N)
    blocks = {name: z + 0.01 * RNG.standard_normal(N) for name in "abcde"}
    edges = [p + q for k, p in enumerate("abcde") for q in "abcde"[k + 1 :]]
    assert found(blocks, edges) == [(set("abcde"), False)]


def test_strong_but_ordinary_dependence_and_rare_levels_are_no_relation() -> None:
    x = RNG.standard_normal(N)
    codes = np.where(np.arange(N) < N - 2, 1 + RNG.integers(0, 2, N), 0)  # two rows of the first level
    blocks = {"x": x, "y": x + 0.1 * RNG.standard_normal(N), "k": indicators(codes, 3), "z": x + codes}
    assert found(blocks, ["xy", "xz", "kz", "ky"]) == [({"x", "k1", "k2", "z"}, True)]
    blocks["z"] = x + codes + RNG.standard_normal(N)
    assert found(blocks, ["xy", "xz", "kz", "ky"]) == []


def test_relations_of_two_levels_join_a_set_of_the_same_variables() -> None:
    k = RNG.integers(0, 6, N)
    j = np.where(k == 5, 4, np.minimum(k, 3))  # a level for itself, and one that joins two
    blocks = {"k": indicators(k, 6), "j": indicators(j, 5), "t": (k == 1) + 2.0 * (k == 2) + RNG.standard_normal(N)}
    ((members, exact),) = found(blocks, ["kj", "kt", "jt"])
    assert exact
    assert {name[0] for name in members} == {"k", "j"}


def test_rare_levels_that_have_no_column_tie_no_variables_that_are_independent() -> None:
    """The columns of either variable nearly add up to 1: a relation of its own levels, not with the other."""
    rng = np.random.default_rng(3)
    n = 20_000
    x, y = rng.integers(1, 3, (2, n))
    x[:12], y[6:18] = 0, 0
    X = np.hstack([indicators(x, 3), indicators(y, 3)])
    X = X - X.mean(axis=0)
    names = ["x1", "x2", "y1", "y2"]
    columns = Columns.of(names, {name: name[0] for name in names})
    dag = np.array([[False, True], [False, False]])
    assert not len(relations(dag, X.T @ X / n, columns).members)


def test_two_sums_in_one_family_are_two_sets() -> None:
    """Rounding leaves a little of each in the eigenvectors of the other."""
    a, b, c, d = RNG.standard_normal((4, N))
    blocks = {"a": a, "b": b, "t": a + b, "c": c, "d": d, "u": c + d}
    assert found(blocks, ["at", "bt", "ct", "dt", "ut"]) == [(set("abt"), True), (set("cdu"), True)]


def test_a_relation_that_holds_nearly_is_not_told_with_all_of_a_sum_it_shares_a_part_with() -> None:
    """X is nearly a, which is one of 30 parts of T."""
    parts = dict(zip(ascii_letters[:30], RNG.standard_normal((30, N)), strict=True))
    blocks = {**parts, "T": np.sum(list(parts.values()), axis=0), "X": parts["a"] + 0.01 * RNG.standard_normal(N)}
    told = found(blocks, [name + "T" for name in (*parts, "X")])
    assert told == [({*parts, "T"}, True), ({"a", "X"}, False)]
