"""Effects on networks with a withheld coefficient, which are built by hand: m is binary, x and y are measured."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl_server.inference.effects import Precision, implied_covariance
from fedbnsl_server.results.effect_report import effect_report
from fedbnsl_server.results.learned_network import LearnedNetwork

NAMES = ("m", "x", "y", "z")
M, X, Y, Z = range(4)
LIMIT = 12.0


def network(*undirected: tuple[int, int]) -> LearnedNetwork:
    """m -> x -> y, and z apart; the coefficient of m is withheld, and its nearest possible value is LIMIT."""
    W = np.zeros((4, 4))
    W[M, X], W[X, Y] = LIMIT, 0.7
    told, marks, largest = W.copy(), W != 0.0, np.full((4, 4), np.inf)
    told[M, X] = 0.0
    largest[M] = LIMIT
    for i, j in undirected:
        marks[j, i] = True
    ones = np.ones(4)
    return LearnedNetwork(
        Columns.of(NAMES, {}),
        marks,
        np.zeros_like(marks),
        implied_covariance(W, ones),
        Precision(1000.0, 0.01),
        assumed=0,
        units={},
        withheld=(("m", "x"),),
        without_withheld=implied_covariance(told, ones),
        largest=largest,
    )


def effect(of: LearnedNetwork, sources: list[int], target: int) -> dict[str, Any]:
    return effect_report(of, sources, target, {*sources, target})


@pytest.mark.parametrize(("sources", "target"), [([M, Z], X), ([X, Z], M)])
def test_a_joint_effect_along_a_withheld_edge_without_a_direction_is_withheld(sources: list[int], target: int) -> None:
    """In one of the two graphs no source reaches the target."""
    report = effect(network((M, X), (X, Y)), sources, target)
    by_source = {row["source"]: row["verdict"] for row in report["effects"]}
    assert by_source[NAMES[sources[0]]] == "withheld"
    assert by_source["z"] != "withheld"


def test_an_error_that_rests_on_a_withheld_coefficient_is_not_told_and_the_effect_is() -> None:
    """x varies as much as m moves it, and the error of its coefficient is as small."""
    (value,) = effect(network(), [X], Y)["effects"][0]["values"]
    assert value["effect"] == pytest.approx(0.7)
    assert (value["standard_error"], value["interval"]) == (None, None)


def test_an_effect_of_several_values_that_do_not_rest_on_it_is_told() -> None:
    (row,) = effect(network((X, Y)), [X], Y)["effects"]
    assert [one["effect"] for one in row["values"]] == pytest.approx([0.0, 0.7])


@pytest.mark.parametrize("undirected", [(), ((M, X), (X, Y))], ids=["directed", "open, so that 0 is the other effect"])
def test_an_effect_beyond_the_limit_of_its_columns_is_withheld(undirected: tuple[tuple[int, int], ...]) -> None:
    """A limit in the other direction is none."""
    found = network(*undirected)
    assert found.largest is not None
    for limit, verdict in ((LIMIT / 2, "withheld"), (np.inf, "not identified" if undirected else "identified")):
        largest = found.largest.copy()
        largest[M, X], largest[X, M] = limit, LIMIT / 2
        known = replace(found, withheld=(), without_withheld=None, largest=largest)
        assert effect(known, [M], X)["verdict"] == verdict


def test_an_effect_of_a_private_run_says_what_noise_and_clipping_do_to_it() -> None:
    clipped = replace(network(), clipped=("x", "z"))
    turned, sign = "its arrows point the other way", "effects on or through 'x' come out too large or too small"
    for of, source, target, told in ((clipped, M, X, True), (clipped, M, Y, True), (clipped, X, Y, False)):
        words = effect(of, [source], target)["in_words"]
        assert any(turned in line for line in words)
        assert any(sign in line for line in words) == told
    exact = replace(clipped, precision=Precision(1000.0, 0.0))
    assert not any(turned in line for line in effect(exact, [X], Y)["in_words"])
