"""What result.json says of confidence: the right numbers at the right edges, in the tables' units."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Units
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.inference.curvature import Curvature, Curve
from fedbnsl_server.results.assumption_checks import assumption_checks
from fedbnsl_server.results.confidence import estimation_of, fit_of, odd_site, to_no_units, unsure, with_confidence
from fedbnsl_server.results.learned_graph import named_edges
from fedbnsl_server.results.outlier_scores import outliers
from fedbnsl_server.results.sentences import checks_in_words, in_words

COLUMNS = Columns.of(["a", "b", "c"])
SCALES = np.array([2.0, 10.0, 0.5])

# b -> a and b -> c between columns without units; a and c are no pair of the graph.
CONFIDENCE = Confidence(
    n_samples=400.0,
    noise_std=0.0,
    edges=np.array([[1, 0], [1, 2]]),
    standard_error=np.array([0.1, 0.2]),
    variance=np.array([1.0, 1.0, 1.0]),
    residual_variance=np.array([0.25, 1.0, 0.6]),
    residual_correlation=np.empty((0, 0)),
    log_variance_error=np.array([0.1, 0.1, 0.1]),
    sites=("x", "y"),
    site_estimate=np.array([[0.5, 1.0], [0.7, np.nan]]),
    site_error=np.array([[0.1, 0.1], [0.1, np.nan]]),
    q=np.array([2.0, 0.0]),
    degrees=np.array([1, 0]),
    draws=20,
    left_out=2,
    pairs=np.array([[0, 1], [0, 2], [1, 2]]),
    counts=np.array([[20, 2, 8, 2], [4, 1, 0, 0], [10, 10, 0, 1]]),
    n_apart=1,
    unexplained=np.empty((0, 2), dtype=np.int64),
    unexplained_correlation=np.empty(0),
    n_unexplained=0,
)
DAG = np.zeros((3, 3), dtype=bool)
DAG[1, [0, 2]] = True
WITHOUT_UNITS = np.where(DAG, [[0, 0, 0], [0.6, 0, 1.0], [0, 0, 0]], 0.0)


def graph(centres: np.ndarray | None = None) -> ConsensusGraph:
    units = Units(np.empty(0) if centres is None else centres, SCALES)
    return graph_of(DAG, units.weights_of_tables(WITHOUT_UNITS), COLUMNS, units)


def graph_of(dag: np.ndarray, W: np.ndarray, columns: Columns, units: Units | None = None) -> ConsensusGraph:
    return ConsensusGraph(dag, W, (), EdgeMask(Knowledge(), columns), "cpdag", units)


def edge(source: str, target: str, weight: float, standardised: float) -> dict[str, Any]:
    return {"source": source, "target": target, "weight": weight, "standardised": standardised}


def test_errors_are_in_units_of_the_tables_and_intervals_reach_1_96_of_them() -> None:
    (found,) = with_confidence([edge("b", "a", 0.12, 0.6)], CONFIDENCE, graph(), COLUMNS)
    assert found["standard_error"] == pytest.approx(0.1 * 2 / 10)
    assert found["interval"] == pytest.approx([0.12 - 0.0392, 0.12 + 0.0392], abs=1e-5)
    assert found["standardised_interval"] == pytest.approx([0.6 - 0.196, 0.6 + 0.196], abs=1e-4)


def test_weights_without_units_are_in_scales_or_under_privacy_in_the_deviations_of_the_network() -> None:
    assert to_no_units(graph_of(DAG, WITHOUT_UNITS, COLUMNS), CONFIDENCE) is None
    plain = to_no_units(graph(), CONFIDENCE)
    assert plain == pytest.approx(SCALES[:, None] / SCALES)
    noisy = replace(CONFIDENCE, noise_std=0.1, variance=np.array([1.0, 4.0, 9.0]))
    factor = to_no_units(graph(), noisy)
    assert factor is not None
    assert factor == pytest.approx(np.outer(SCALES * [1, 2, 3], 1 / (SCALES * [1, 2, 3])))
    (told, *_) = named_edges(graph(), COLUMNS, factor)
    assert told["standardised"] == pytest.approx(0.6 * 2.0)  # beyond 1.0 x 2 / 3 of the other edge
    (found,) = with_confidence([told], noisy, graph(), COLUMNS)
    assert found["standardised_interval"] == pytest.approx([2 * (0.6 - 0.196), 2 * (0.6 + 0.196)], abs=1e-3)


def test_shares_follow_the_direction_that_the_edge_is_named_in() -> None:
    (found,) = with_confidence([edge("b", "a", 0.12, 0.6)], CONFIDENCE, graph(), COLUMNS)
    assert found["bootstrap"] == {"adjacent": 1.0, "forward": 0.4, "backward": 0.1}
    assert found["without_a_site"] == {"adjacent": 2, "of": 2}
    assert found["standard_error"] == pytest.approx(0.02)


def test_each_site_tells_its_estimate_where_it_has_one() -> None:
    first, second = with_confidence(
        [edge("b", "a", 0.12, 0.6), edge("b", "c", 0.05, 1.0)], CONFIDENCE, graph(), COLUMNS
    )
    sites = first["sites"]
    assert sites["q"] == 2.0
    assert sites["p"] == pytest.approx(0.1573, abs=1e-4)  # chi-square with one degree of freedom
    assert sites["i2"] == pytest.approx(0.5)
    assert sites["estimates"] == {"x": pytest.approx([0.1, 0.02]), "y": pytest.approx([0.14, 0.02])}
    assert second["sites"] is None


def test_without_a_search_over_moments_edges_are_as_they_were_and_everything_else_is_empty() -> None:
    assert with_confidence([edge("b", "a", 0.12, 0.6)], None, graph(), COLUMNS) == [edge("b", "a", 0.12, 0.6)]
    assert unsure(None, graph(), COLUMNS) == []
    assert fit_of(None, graph(), COLUMNS, np.empty(0)) == {}
    assert estimation_of(None, COLUMNS) is None


def test_what_the_numbers_rest_on_has_no_key_without_a_value() -> None:
    assert estimation_of(CONFIDENCE, COLUMNS) == {"n_samples": 400.0, "noise_std": 0.0, "draws": 20, "widened": {}}


def test_without_draws_or_sites_their_numbers_are_null_and_the_others_there() -> None:
    alone = replace(CONFIDENCE, draws=0, left_out=0, counts=np.empty((0, 4), int), pairs=np.empty((0, 2), int))
    (found,) = with_confidence([edge("b", "a", 0.12, 0.6)], alone, graph(), COLUMNS)
    assert found["bootstrap"] is None
    assert found["without_a_site"] is None
    assert found["interval"]
    assert unsure(alone, graph(), COLUMNS) == []


def test_pairs_that_nearly_were_an_edge_are_named() -> None:
    expected = {"source": "a", "target": "c", "adjacent": 0.2, "forward": 0.05, "backward": 0.0}
    assert unsure(CONFIDENCE, graph(), COLUMNS) == [expected]
    rare = replace(CONFIDENCE, counts=np.array([[20, 2, 8, 2], [1, 1, 0, 0], [10, 10, 0, 1]]))
    assert unsure(rare, graph(), COLUMNS) == []


def test_the_fit_has_residual_variances_of_the_tables_and_an_intercept_where_all_sites_share_it() -> None:
    fit = fit_of(CONFIDENCE, graph(), COLUMNS, np.array([1.5, 2.0, 3.0]))
    assert fit["a"] == {"r2": pytest.approx(0.75), "intercept": None, "residual_variance": 1.5}
    centres = np.array([1.0, 20.0, -3.0])
    # a is 0.12 b + 1 - 0.12 * 20 in the tables.
    assert fit_of(CONFIDENCE, graph(centres), COLUMNS, np.empty(0))["a"]["intercept"] == pytest.approx(-1.4)
    b = fit_of(CONFIDENCE, graph(centres), COLUMNS, np.empty(0))["b"]
    assert b == {"r2": 0.0, "intercept": pytest.approx(20.0), "residual_variance": None}


def test_coefficients_of_a_nominal_variable_have_errors_of_their_own() -> None:
    columns = Columns.of(["a", "b1", "b2"], {"b1": "b", "b2": "b"})
    dag = np.zeros((3, 3), dtype=bool)
    dag[0, 1:] = True
    correlation = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, -0.6], [0.0, -0.6, 1.0]])
    confidence = replace(
        CONFIDENCE,
        edges=np.array([[0, 1], [0, 2]]),
        pairs=np.array([[0, 1]]),
        counts=np.array([[5, 5, 0, 1]]),
        residual_correlation=correlation,
    )
    W = np.where(dag, [[0, 0.3, -0.9]], 0.0)
    told = {
        "source": "a", "target": "b", "weight": -0.9,
        "coefficients": [
            {"source": "a", "target": "b1", "weight": 0.3}, {"source": "a", "target": "b2", "weight": -0.9}
        ],
    }  # fmt: skip
    (found,) = with_confidence([told], confidence, graph_of(dag, W, columns), columns)
    assert found["standard_error"] == 0.2
    assert [one["standard_error"] for one in found["coefficients"]] == [0.1, 0.2]
    assert found["standardised_interval"] is None
    fit = fit_of(confidence, graph_of(dag, W, columns), columns, np.ones(3))["b"]
    assert fit["r2"] is None
    assert fit["residual_correlation"] == [[1.0, -0.6], [-0.6, 1.0]]


# ---- the assumption checks ------------------------------------------------------------------------------------------

LEAN = Plan.load("lean")
CPDAG = LEAN.with_settings(graph_class="cpdag")


EQUAL = np.ones(3)


def verdict_of(*given: Any) -> dict[str, Any]:
    told: dict[str, Any] = in_words(assumption_checks(*given))
    return told


def contradicted(plan: Plan, confidence: Confidence, residual_variance: np.ndarray = EQUAL) -> list[str]:
    found: list[str] = verdict_of(plan, COLUMNS, [], confidence, residual_variance)["contradicted"]
    return found


def test_sets_of_variables_that_are_functions_of_each_other_are_named_whole() -> None:
    sets = replace(CONFIDENCE, related=np.array([[True, False, True]]), exact=np.array([True]))
    (told,) = contradicted(CPDAG, sets)
    assert told.startswith("'a', 'c' are functions of each other but for rounding")
    (nearly,) = contradicted(CPDAG, replace(sets, exact=np.array([False])))
    assert nearly.startswith("'a', 'c' are nearly functions of each other")
    columns = Columns.of(
        ["k=x", "k=y", "m=x", "m=y", "m=z"], {"k=x": "k", "k=y": "k"} | dict.fromkeys(["m=x", "m=y", "m=z"], "m")
    )
    sets = replace(
        sets, related=np.array([[True, False, False, True, False]]), q=np.zeros(2), degrees=np.zeros(2, np.int64)
    )
    (levels,) = verdict_of(CPDAG, columns, [], sets, EQUAL)["contradicted"]
    assert levels.startswith(
        "'k' (level 'x'), 'm' (level 'y') are functions of each other, at least in some levels, but"
    )


def test_beside_curves_how_sites_differ_is_that_of_the_lines() -> None:
    hinges = replace(CONFIDENCE, odd_site="x", odd_in=np.array([[1, 0]]), differ_apart=np.empty((0, 2), dtype=np.int64))
    lines = replace(CONFIDENCE, odd_site="y", odd_in=np.array([[1, 2]]), differ_apart=np.array([[0, 2]]), draws=0)
    found = hinges.with_lines_of(lines)
    assert (found.odd_site, found.odd_in.tolist(), found.differ_apart.tolist()) == ("y", [[1, 2]], [[0, 2]])
    assert found.draws == CONFIDENCE.draws


def test_beside_curves_edges_that_hang_on_the_odd_site_stay_if_lines_name_the_same() -> None:
    lost, gained = np.array([[0, 1]]), np.array([[1, 2]])
    hinges = replace(CONFIDENCE, odd_site="x", odd_in=np.array([[1, 0]]), odd_lost=lost, odd_gained=gained)
    same, other = (replace(CONFIDENCE, odd_site=site, odd_in=np.array([[1, 2]])) for site in ("x", "y"))
    assert hinges.with_lines_of(same).odd_lost.tolist() == [[0, 1]]
    assert hinges.with_lines_of(same).odd_gained.tolist() == [[1, 2]]
    assert not len(hinges.with_lines_of(other).odd_lost)
    assert not len(hinges.with_lines_of(other).odd_gained)


def test_sites_are_not_said_to_differ_where_rounding_decides_the_coefficients() -> None:
    n = len(CONFIDENCE.edges)
    differ = replace(
        CONFIDENCE, q=np.full(n, 500.0), degrees=np.full(n, 2), differ_apart=np.array([[0, 2]]), n_unexplained=0
    )
    alarms = [text for text in contradicted(CPDAG, differ) if text.startswith("sites differ")]
    assert len(alarms) == 2
    everything = np.ones((1, 3), dtype=bool)
    told = verdict_of(CPDAG, COLUMNS, [], replace(differ, related=everything, exact=np.array([True])), EQUAL)
    (only,) = told["contradicted"]
    assert only.startswith("'a', 'b', 'c' are functions of each other")
    assert not any(text.startswith("whether the sites' coefficients differ") for text in told["tested"])


def test_variances_that_differ_by_chance_contradict_nothing_and_a_real_difference_is_told_with_its_ratio() -> None:
    assert contradicted(LEAN, CONFIDENCE, np.array([1.0, 1.1, 0.9])) == []
    unequal = np.array([1.0, 2.0, 0.5])
    (sentence,) = contradicted(LEAN, CONFIDENCE, unequal)
    assert "factor of up to 4" in sentence
    assert "c 0.5" in sentence
    assert "b 2" in sentence
    assert contradicted(CPDAG, CONFIDENCE, unequal) == []
    assert contradicted(LEAN, CONFIDENCE, np.empty(0)) == []


def test_false_alarms_of_unequal_variances_are_as_rare_as_the_level() -> None:
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(2000):
        alarms += bool(contradicted(LEAN, CONFIDENCE, np.exp(0.1 * rng.standard_normal(3))))
    assert 8 <= alarms <= 36  # 20 expected


def test_edges_whose_coefficients_differ_between_sites_are_named() -> None:
    (sentence,) = contradicted(CPDAG, replace(CONFIDENCE, q=np.array([40.0, 1.0]), degrees=np.array([4, 4])))
    assert "b -> a (I^2 0.90)" in sentence
    assert "b -> c" not in sentence
    named = [{"source": "b", "target": "a", "directed": False, "directed_by": "nobody"}]
    differing = replace(CONFIDENCE, q=np.array([40.0, 1.0]), degrees=np.array([4, 4]))
    (sentence,) = verdict_of(CPDAG, COLUMNS, named, differing, EQUAL)["contradicted"]
    assert "b -- a (I^2 0.90)" in sentence, "as the table has it"


@pytest.mark.parametrize(("p", "named"), [(0.006, []), (0.004, [["a", "c"]])])
def test_ratios_of_two_children_differ_between_sites_only_below_half_the_level(p: float, named: list[Any]) -> None:
    """Holm's correction: of m tests, the smallest p counts m times."""
    ratios = [{"child": one, "agreement": {"p": p, "degrees": 1.0}, "sites": [], "estimates": []} for one in "ac"]
    told = assumption_checks(CPDAG, COLUMNS, [], CONFIDENCE, EQUAL, regressions=ratios)["contradicted"]
    assert [[one.numbers["child"] for one in note.numbers["children"]] for note in told] == named


def test_where_tables_decide_ratios_are_not_said_to_be_tested_in_part_and_children_with_few_records_are_named() -> None:
    dictionary: dict[str, Any] = {name: {"kind": "binary", "levels": ["0", "1"]} for name in "abc"}
    plan = Plan.load("standard").with_settings(dictionary=dictionary)
    estimates = [{"interval": [0.5, 2.0]}] * 4
    ratio = {"child": "a", "agreement": {"p": 0.5, "degrees": 1.0}, "sites": ["x", "y"], "estimates": estimates}
    tables = {
        "a": {"parents": ["b"], "agreement": {"p": 0.5}},
        "b": {"parents": [], "agreement": None},
        "c": {"parents": ["b"], "agreement": None},
    }

    def told(categories: Any = None) -> dict[str, list[Any]]:
        return assumption_checks(plan, COLUMNS, [], CONFIDENCE, EQUAL, regressions=[ratio], categories=categories)

    (tested,) = (one for one in told(tables)["tested"] if one.code == "tests_tables")
    assert tested.numbers["few"] == ["c"]
    in_part = ["ratios_tested_in_part" in [one.code for one in of["not_tested"]] for of in (told(tables), told())]
    assert in_part == [False, True]


def test_correlated_residuals_are_told_with_how_many_there_are() -> None:
    one = replace(CONFIDENCE, unexplained=np.array([[0, 2]]), unexplained_correlation=np.array([-0.2]), n_unexplained=3)
    (sentence,) = contradicted(CPDAG, one)
    assert "residuals of a and c" in sentence
    assert "-0.2" in sentence
    assert "2 more such pairs" in sentence


def test_more_than_all_of_two_residuals_in_common_is_no_correlation() -> None:
    """The residual variance of an exact function of others is none that noise lets tell."""
    one = replace(CONFIDENCE, unexplained=np.array([[0, 2]]), unexplained_correlation=np.array([52.0]), n_unexplained=1)
    (sentence,) = contradicted(CPDAG, one)
    assert "52" not in sentence
    assert "a and c, which have no edge, vary together by more than is left of their variances" in sentence


def test_what_is_assumed_follows_from_the_plan() -> None:
    def assumed(plan: Plan) -> str:
        return "; ".join(verdict_of(plan, COLUMNS, [], None, EQUAL)["assumed"])

    assert "noise variances are equal" in assumed(LEAN)
    assert "mean zero" in assumed(LEAN)
    assert "nothing about noise variances" in assumed(CPDAG)
    assert "means of its own" in assumed(Plan.load("standard"))
    known = LEAN.with_settings(knowledge=Knowledge(required=(("a", "b"),), tiers=(("a",), ("c",))).model_dump())
    assert "1 required edge, 2 tiers" in assumed(known)
    assert "do not cancel" in assumed(CPDAG)
    assert "do not cancel" not in assumed(LEAN)


def test_what_was_tested_is_said_and_nothing_else() -> None:
    def tested(plan: Plan, confidence: Confidence | None, variance: np.ndarray = EQUAL) -> list[str]:
        found: list[str] = verdict_of(plan, COLUMNS, [], confidence, variance)["tested"]
        return found

    residuals, sites, variances = tested(LEAN, replace(CONFIDENCE, degrees=np.array([4, 4])))
    assert ("residuals are correlated" in residuals, "sites" in sites, "variances" in variances) == (True, True, True)
    assert tested(CPDAG, replace(CONFIDENCE, degrees=np.array([4, 4]))) == [residuals, sites]
    alone = replace(CONFIDENCE, degrees=np.array([0, 0]), sites=())
    assert tested(CPDAG, alone) == [residuals]
    assert tested(LEAN, alone, np.empty(0)) == [residuals]
    assert tested(LEAN, None) == []
    assert tested(CPDAG, replace(alone, n_apart=0)) == []


@pytest.mark.parametrize(
    ("unfit", "shapes", "rows", "reason"),
    [
        ("few", "auto", 400.0, "too few rows have no missing value"),
        ("differ", "auto", 400.0, "rows with a missing value differ"),
        ("columns", "auto", 400.0, "at a site no row has all variables"),
        ("few", "auto", 40.0, "there are too few rows"),
        ("", "linear", 400.0, "no number may bend"),
        ("", "auto", 400.0, "sites send no sums over few rows"),
    ],
)
def test_why_no_curves_were_looked_for_is_said_with_one_reason(
    unfit: Any, shapes: str, rows: float, reason: str
) -> None:
    plan = Plan.load("standard").with_settings(dictionary={name: {"shape": shapes} for name in COLUMNS.variables})
    gaps = Completion({"one": np.full((3, 3), 400.0)}, unfit=unfit)
    told = assumption_checks(plan, COLUMNS, [], replace(CONFIDENCE, n_samples=rows), EQUAL, completion=gaps)
    (said,) = (text for text in in_words(told)["not_tested"] if "curved effects" in text)
    assert said.removeprefix("whether a graph with curved effects is better: ").startswith(reason)


def test_what_a_site_lacks_is_named_as_the_reason_why_no_curves_were_looked_for() -> None:
    n_pairs = np.full((3, 3), 400.0)
    n_pairs[1], n_pairs[:, 1] = 0.0, 0.0
    gaps = Completion({"one": np.full((3, 3), 400.0), "two": n_pairs}, unfit="columns")
    told = assumption_checks(Plan.load("standard"), COLUMNS, [], CONFIDENCE, EQUAL, completion=gaps)
    lacked = COLUMNS.variables[COLUMNS.variable_of[1]]
    assert any(f"some site lacks {lacked!r}" in text for text in in_words(told)["not_tested"])


def test_a_private_run_whose_noise_hides_all_variables_but_one_has_tested_nothing() -> None:
    private = Plan.load("private", epsilon=1.0)
    noisy = replace(CONFIDENCE, noise_std=0.2, sites=(), degrees=np.zeros(2, np.int64))

    def told(*hidden: str) -> dict[str, Any]:
        unused = [{"variable": name, "level": None, "why": "hidden"} for name in hidden]
        return in_words(assumption_checks(private, COLUMNS, [], noisy, EQUAL, unused=unused)) | {"complete_cases": []}

    assert told("a", "b")["tested"] == []
    assert "hides 'a', 'b'" in told("a", "b")["not_tested"][0]
    untested, lacking = checks_in_words(told("a", "b"))
    assert untested == "Whether the data contradict it was not tested."
    assert lacking.startswith("Not tested: ")
    (seen,) = told("a")["tested"]
    assert "(not of 'a': the noise of privacy hides it)" in seen
    assert "(the noise of privacy hides correlations below about 0.53)" in seen  # 2.58 standard deviations
    assert "Not tested: whether the sites' coefficients differ" in " ".join(checks_in_words(told()))


def test_a_private_run_says_that_it_looks_for_no_curves_and_counts_no_categories() -> None:
    number, category = {"range": [0.0, 1.0]}, {"kind": "binary", "levels": ["no", "yes"]}

    def says(*entries: dict[str, Any]) -> tuple[bool, bool]:
        plan = Plan.load("private", epsilon=1.0).with_settings(dictionary=dict(zip("abc", entries, strict=True)))
        told = verdict_of(plan, COLUMNS, [], CONFIDENCE, EQUAL)
        return (
            any("looks for no curves" in text for text in told["not_tested"]),
            any("counts no records" in text for text in told["assumed"]),
        )

    assert says(number, number, category) == (True, False)
    assert says(number, category, category) == (False, True)


def test_linear_effects_on_levels_are_said_not_to_be_tested() -> None:
    described = {"a": {"kind": "binary", "levels": ["no", "yes"]}, "b": {}, "c": {}}
    told = verdict_of(CPDAG.with_settings(dictionary=described), COLUMNS, [], CONFIDENCE, EQUAL)
    assert "whether linear effects and Gaussian noise fit 'a', whose values are levels" in told["not_testable"][1]


def test_what_noise_hides_has_no_r2() -> None:
    noisy = replace(CONFIDENCE, noise_std=0.2)
    known = fit_of(noisy, graph(), COLUMNS, np.array([1.0, np.nan, 1.0]))
    for number in ("r2", "residual_variance"):
        assert [known[name][number] is None for name in "abc"] == [False, True, False]
    assert all(fit["r2"] is None for fit in fit_of(noisy, graph(), COLUMNS, np.empty(0)).values())


def test_an_edge_whose_sites_have_too_few_events_is_said_not_to_be_tested() -> None:
    def sites(degrees: list[int]) -> str:
        told = verdict_of(CPDAG, COLUMNS, [], replace(CONFIDENCE, degrees=np.array(degrees)), EQUAL)
        return (told["not_tested"] or told["tested"])[-1]

    assert sites([1, 1]) == "whether the sites' coefficients differ"
    assert sites([1, 0]).startswith("whether the sites' coefficients differ (not of b -- c: too few rows")
    assert sites([0, 0]).startswith("whether the sites' coefficients differ: too few rows")


def test_families_that_no_two_sites_have_and_what_sites_lack_are_said_not_to_be_tested() -> None:
    """b -> a is at north and west, b -> c at south alone; of b, west has no value."""
    rows = np.full((3, 3), 50.0)
    without_b, apart = rows.copy(), rows.copy()
    without_b[1] = without_b[:, 1] = apart[2, 1] = apart[1, 2] = 0.0
    gaps = Completion(n_pairs={"north": apart, "south": rows, "west": without_b, "ejected": rows})

    def told(*degrees: int) -> dict[str, Any]:
        one = replace(CONFIDENCE, sites=("north", "south", "west"), degrees=np.array(degrees))
        return in_words(assumption_checks(CPDAG, COLUMNS, [], one, EQUAL, completion=gaps)) | {"complete_cases": []}

    some, lacking = told(1, 0), "whether each site agrees on every variable: north has no row with both 'b' and 'c', "
    assert some["tested"][-1] == "whether the sites' coefficients differ"
    assert some["not_tested"] == [
        "whether the sites' coefficients differ at 'c' given 'b': fewer than two sites have all of these variables",
        lacking + "west has no value of 'b'",
    ]
    assert f"Not tested: {some['not_tested'][0]}; {lacking}" in " ".join(checks_in_words(some))
    few_events = told(0, 0)["not_tested"]
    assert few_events[0].startswith("whether the sites' coefficients differ: too few rows")
    gaps.n_pairs["south"][:2, :2] = 0.0
    assert told(0, 0)["not_tested"][0].endswith(
        "no two sites have all variables of a family (a variable and its parents)"
    )


def test_pairs_without_an_edge_that_differ_between_sites_are_named() -> None:
    (sentence,) = contradicted(CPDAG, replace(CONFIDENCE, differ_apart=np.array([[0, 2]])))
    assert "in how a and c vary together, which have no edge" in sentence


def test_no_site_is_odd_in_lines_whose_place_the_test_of_ratios_takes() -> None:
    edge = CONFIDENCE.edges[0]
    odd = replace(CONFIDENCE, odd_site="west", odd_in=edge[None])
    source, target = (COLUMNS.variables[v] for v in edge.tolist())

    def by(child: str, p: float | None, site: str | None = None) -> dict[str, Any] | None:
        agreement = None if p is None else {"p": p}
        ratios = [{"source": source, "target": target}]
        return odd_site(odd, COLUMNS, [{"child": child, "agreement": agreement, "odd_site": site, "estimates": ratios}])

    assert by(target, 0.5) is None
    assert by(target, None) == by(source, 0.5) == odd_site(odd, COLUMNS)
    told = by(target, 1e-9, "east")
    assert told is not None
    assert (told["site"], [sorted(pair) for pair in told["differs_in"]]) == ("east", [sorted([source, target])])
    assert by(source, 1e-9, "east") == odd_site(odd, COLUMNS), "lines say another one"


def test_the_odd_site_is_told_with_what_hangs_on_it() -> None:
    assert odd_site(None, COLUMNS) is None
    assert odd_site(CONFIDENCE, COLUMNS) is None
    odd = replace(
        CONFIDENCE,
        odd_site="y",
        odd_in=np.array([[1, 0], [0, 2]]),
        odd_lost=np.array([[0, 1]]),
        odd_gained=np.array([[0, 2], [1, 2]]),
        odd_left_out=True,
    )
    told = odd_site(odd, COLUMNS)
    assert told == {
        "site": "y",
        "differs_in": [["a", "b"], ["a", "c"]],
        "edges_lost_without": [["a", "b"]],
        "edges_gained_without": [["a", "c"], ["b", "c"]],
        "left_out_by_median": True,
    }
    (sentence,) = in_words(outliers({"limit": 6.0, "sites": {}, "odd": told}))
    assert sentence.startswith("y differs from all other sites in a -- b, a -- c: without it the others agree, and ")
    assert "the graph lacks a -- b and also has a -- c, b -- c. " in sentence
    assert '(`consensus = "median"` would leave it out)' in sentence


def test_knowledge_that_costs_more_than_chance_is_said_not_to_fit() -> None:
    assert contradicted(CPDAG, replace(CONFIDENCE, cost_of_knowledge=4.9)) == []
    (told,) = contradicted(CPDAG, replace(CONFIDENCE, cost_of_knowledge=12.34))
    assert told.startswith("the plan's knowledge does not fit the data: ")
    assert "larger by 12.3 " in told
    assert "no straight lines" not in told
    bent = Curvature(1, 1, (Curve("a", "b", 0.2),))
    checks = assumption_checks(CPDAG, COLUMNS, [], replace(CONFIDENCE, cost_of_knowledge=12.34), EQUAL, curvature=bent)
    assert any(
        one.startswith("the plan's knowledge") and one.endswith("can make true knowledge look so")
        for one in in_words(checks)["contradicted"]
    )
    tested = verdict_of(CPDAG, COLUMNS, [], replace(CONFIDENCE, cost_of_knowledge=0.0), EQUAL)["tested"]
    assert "whether a graph without the plan's knowledge fits better" in tested


def test_knowledge_that_holds_only_where_effects_cancel_is_said_with_the_edges_that_it_forbids() -> None:
    collider = replace(CONFIDENCE, cost_of_knowledge=4.6, against_knowledge=np.array([[0, 1], [2, 1], [1, 2]]))
    assert contradicted(CPDAG, collider) == []
    assert contradicted(CPDAG, replace(collider, cost_on_same_pairs=19.0)) == [], "hardly less likely"
    (told,) = contradicted(CPDAG, replace(collider, cost_on_same_pairs=88.7))
    assert told.startswith("the plan's knowledge fits the data only if effects along several paths cancel: ")
    assert told.endswith("without it, the data give a -> b, b -- c")
    few = replace(collider, cost_of_knowledge=3.0, cost_on_same_pairs=88.7)
    assert contradicted(CPDAG, few) == [], "one edge's worth by chance"


def test_what_no_run_can_test_is_in_every_verdict_hidden_causes_first() -> None:
    for confidence in (CONFIDENCE, None):
        verdict = verdict_of(CPDAG, COLUMNS, [], confidence, EQUAL)
        assert verdict["not_testable"][0].startswith("common causes that no table has")
        assert len(verdict["not_testable"]) == 5
        assert "records that several sites have" in verdict["not_testable"][-1]


def test_edges_are_counted_by_who_directed_them() -> None:
    edges = [
        {"source": "a", "target": "b", "directed": who == "data", "directed_by": who}
        for who in ("data", "data", "undecided", "nobody")
    ]
    counts = verdict_of(CPDAG, COLUMNS, edges, CONFIDENCE, EQUAL)["directed_by"]
    assert counts == {"data": 2, "knowledge": 0, "assumption": 0, "untested": 0, "undecided": 1, "nobody": 1}
