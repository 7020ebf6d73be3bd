"""Warnings about noise, by public numbers alone."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Units
from fedbnsl_server.algorithm.admm import initial_state, without
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.results.sentences import Note, sentence
from fedbnsl_server.results.warnings import (
    of_empty_columns,
    of_few_rows,
    of_rare_levels,
    of_required_in_vain,
    of_sites_not_counted,
    of_too_much_noise,
    of_unequal_variances,
)
from fedbnsl_server.search.counts.tables import Counted, SiteTables


def told_by(warn: Callable[..., Iterable[Note]], *given: Any) -> list[str]:
    return list(map(sentence, warn(*given)))


def plan(graph_class: str, threshold: float) -> Plan:
    return Plan.load("private-moments").with_settings(graph_class=graph_class, threshold=threshold)


@pytest.mark.parametrize(
    ("graph_class", "threshold", "rows", "said"),
    [
        ("dag-equal-variance", 0.3, 5000, ""),
        ("dag-equal-variance", 0.3, 500, ""),  # of one round alone it would be too much: all rounds count
        ("dag-equal-variance", 0.3, 100, "more than the threshold 0.3: most edges are lost"),
        ("cpdag", 0.0, 5000, ""),
        ("cpdag", 0.0, 500, "edges that are fainter are lost"),
    ],
)
def test_noise_that_hides_what_the_plan_looks_for_is_told(graph_class, threshold, rows, said) -> None:
    found = told_by(of_too_much_noise, plan(graph_class, threshold), [rows] * 8, 20)
    assert [said in one for one in found] == ([True] if said else [])


def test_with_squares_noise_hides_more() -> None:
    given = plan("cpdag", 0.0), [1500] * 8, 20
    assert not told_by(of_too_much_noise, *given)
    assert told_by(of_too_much_noise, *given, 20)


def test_private_variances_that_were_not_accepted_as_equal_are_told_to_differ() -> None:
    private, exact = plan("dag-equal-variance", 0.3), Plan.load("lean")
    equal, nearly = np.full(2, 0.7, dtype=np.float32), np.array([1.0, 1.3])
    assert (
        told_by(of_unequal_variances, private, ("a", "b"), equal)
        == told_by(of_unequal_variances, exact, ("a", "b"), nearly)
        == []
    )
    (told,) = told_by(of_unequal_variances, private, ("a", "b"), nearly)
    assert "residual variances, from noisy moments, differ (a 1, b 1.3)" in told


def test_a_site_that_missed_a_round_of_counts_is_named_unless_it_was_ejected() -> None:
    state, one = initial_state(2, ["east", "north", "south", "west"]), np.array([1])
    assert told_by(of_sites_not_counted, state) == []
    tables = dict.fromkeys(["east", "north"], SiteTables(one, one, one))
    counted = Counted(np.zeros((2, 2), dtype=bool)).with_answers(((0, 1),), tables)
    left = without(replace(state, counted=counted), ["west"])
    (told,) = told_by(of_sites_not_counted, left)
    assert told.startswith("south missed a round of counts")


def test_a_site_without_a_value_is_named_unless_the_plan_says_so_or_is_private() -> None:
    columns, whole = Columns.of(["age", "bmi"]), np.full((2, 2), 9.0)
    gaps = Completion({"north": whole, "south": np.diag([9.0, 0.0])})
    state = replace(initial_state(2, ["north", "south"]), completion=gaps)
    standard = Plan.load("standard").with_settings(n_participants=2)
    (told,) = told_by(of_empty_columns, standard, state, columns)
    assert told.startswith("south has no value of 'bmi': is it in another unit there, or coded otherwise?")
    for other in (standard.with_settings(absent={"south": ["bmi"]}), Plan.load("private", epsilon=1.0)):
        assert told_by(of_empty_columns, other, state, columns) == []


def test_a_required_edge_that_the_data_do_not_show_is_named() -> None:
    knowing = plan("cpdag", 0.0).with_settings(knowledge={"required": [["a", "b"]]})
    edge = {"source": "a", "target": "b", "interval": [-0.1, 0.2]}
    (told,) = told_by(of_required_in_vain, knowing, [edge])
    assert told == "the plan requires a -> b, but the data do not show it: 0 is in the coefficient's interval"
    for other in ([0.1, 0.2], [-0.5, -0.1], None):
        assert told_by(of_required_in_vain, knowing, [{**edge, "interval": other}]) == []
    assert told_by(of_required_in_vain, knowing, [{**edge, "source": "c"}, {**edge, "coefficients": []}]) == []
    for source, n in (("a", 0), ("c", 1)):
        curves = {"effects": [{"source": source, "target": "b"}]}
        assert len(told_by(of_required_in_vain, knowing, [edge], curves)) == n, "the line through a U is flat"


def test_fewer_than_five_rows_a_column_are_told_with_both_numbers() -> None:
    assert told_by(of_few_rows, 250, 50) == []
    (told,) = told_by(of_few_rows, 249, 50)
    assert told.startswith("249 rows are few for 50 columns, fewer than 5 a column (250): ")


@pytest.mark.parametrize(
    ("intercept", "said"),
    [("site", "rarer at their site of 'm'"), ("common", "rarer of 'm'"), ("none", "rarer of 'm'")],
)
@pytest.mark.parametrize("rows", [40, 60, 4000])
def test_rows_with_the_rarer_of_two_values_are_counted_from_the_scale(intercept: str, said: str, rows: int) -> None:
    """In a small table 19 of 40 rows have a variance as small as 10 of many rows."""
    described = Dictionary.model_validate({"m": {"kind": "binary", "levels": ["no", "yes"]}, "x": {}})
    standard = Plan.load("standard").with_dictionary(described, origin="here")
    preparation = standard.preparation.model_copy(update={"intercept": intercept})
    as_set = standard.with_settings(preparation=preparation.model_dump())
    for count in (1, 9, 10, 12, 19):
        for ones in (count, rows - count):
            m = np.arange(rows) < ones
            scale = np.sqrt(np.mean(m)) if intercept == "none" else np.std(m)
            found = told_by(of_rare_levels, as_set, ("m", "x"), Units(np.empty(0), np.array([scale, 1e-3])), rows)
            assert len(found) == (count < 10), (count, ones)
            assert all(f"{said} (about {count}):" in text for text in found)


def test_noise_is_not_taken_for_the_rows_of_a_rare_level() -> None:
    described = Dictionary.model_validate(
        {"m": {"kind": "binary", "levels": ["no", "yes"]}, "x": {"range": [0.0, 1.0]}}
    )
    units = Units(np.empty(0), np.array([0.01, 0.5]))
    plans = [Plan.load("standard"), Plan.load("private", epsilon=1.0)]
    found = [
        told_by(of_rare_levels, one.with_dictionary(described, origin="here"), ("m", "x"), units, 400) for one in plans
    ]
    assert [len(texts) for texts in found] == [1, 0]
