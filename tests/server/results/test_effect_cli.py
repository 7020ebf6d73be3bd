"""`fedbnsl effect`: run folders written by hand, effects counted on paper."""

import json
from dataclasses import replace

import numpy as np
import pytest

from command_line import run_command
from fedbnsl.graphs.files import LearnedGraph, write_all
from fedbnsl_server.results.effect_cli import _no_path, _sets_in_words
from fedbnsl_server.results.hidden_effects import EffectsIfHidden
from fedbnsl_server.results.learned_network import read_network
from least_result import LEAST_RESULT

WEIGHTS = {("a", "b"): 0.5, ("b", "c"): 2.0}


def written(folder, edges, *, weights=WEIGHTS, names="abc", variances=(4.0, 3.0, 12.0, np.nan), **changes):
    """A run a -> b -> c with residual variances 4, 3 and 12: the variances are 4, 4 and 28."""
    folder.mkdir()
    dag = np.array([[(s, t) in weights for t in names] for s in names])
    W = np.array([[weights.get((s, t), 0.0) for t in names] for s in names])
    write_all(LearnedGraph(tuple(names), dag, W, np.array(variances)[: len(names)]), folder)
    result = {
        **LEAST_RESULT, "variables": list(names), "edges": edges, "graph_class": "cpdag", **changes,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def edge(source, target, by="data", **more):
    weight = WEIGHTS.get((source, target), WEIGHTS.get((target, source)))
    return {
        "source": source, "target": target, "weight": weight, "directed": by != "nobody", "directed_by": by, **more
    }  # fmt: skip


DIRECTED = [edge("a", "b", "knowledge"), edge("b", "c", "knowledge")]
VERDICT = {"assumed": [], "tested": [], "contradicted": [], "directed_by": {}, "draws": 50, "majority": 0.75}
UNDIRECTED = [edge("a", "b", "nobody"), edge("b", "c", "nobody")]


def asked(capsys, run, source, target, *more):
    outcome = run_command(capsys, "effect", run, "--from", source, "--to", target, "--json", *more)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_an_identified_effect_is_the_product_along_the_path_with_its_interval(capsys, tmp_path):
    """With n = 100: var = (2^2 var(a to b) + 0.5^2 var(b to c)), of which 100 times are 3 / 4 and 12 / 4."""
    run = written(tmp_path / "run", DIRECTED, estimation={"n_samples": 100, "noise_std": 0.0, "draws": 0})
    report = asked(capsys, run, "a", "c")
    assert report["verdict"] == "identified"
    (row,) = report["effects"]
    (value,) = row["values"]
    assert value["effect"] == pytest.approx(1.0)
    assert value["standard_error"] == pytest.approx(np.sqrt((4 * 3 / 4 + 0.25 * 12 / 4) / 100))
    half = 1.959964 * np.sqrt((4 * 3 / 4 + 0.25 * 12 / 4) / 100)
    assert value["interval"] == pytest.approx([1.0 - half, 1.0 + half])
    assert value["standardised"] == pytest.approx(np.sqrt(4 / 28))
    assert value["standardised_interval"] == pytest.approx([x * np.sqrt(4 / 28) for x in value["interval"]])
    assert value["adjusted_for"] == [[[]]]


def test_what_says_against_the_graph_comes_before_the_effect_and_its_verdict(capsys, tmp_path):
    told = "sites differ more than chance gives in the coefficients of a -> b"
    verdict = {**VERDICT, "contradicted": [told]}
    estimation = {"n_samples": 100, "noise_std": 0.0, "draws": 0}
    run = written(tmp_path / "run", DIRECTED, estimation=estimation, verdict=verdict)
    text = run_command(capsys, "effect", run, "--from", "a", "--to", "c").out
    assert text.index(f"be careful: {told}") < text.index("effect of a on c") < text.index("identified: ")
    assert text.count(told) == 1


@pytest.mark.parametrize(
    ("pair", "told"), [("sex -> bmi", True), ("age", False), ("age and 3 more", True), ("nobody", True)]
)
def test_what_says_against_the_graph_elsewhere_is_one_short_line(pair, told, capsys, tmp_path):
    names, doubt = ("sex", "bmi", "crp", "age"), f"sites differ in {pair}: there it tells a mean of what differs"
    edges = [{**edge("a", "b"), "source": one, "target": other} for one, other in (("sex", "bmi"), ("bmi", "crp"))]
    changes = {
        "names": names,
        "weights": {("sex", "bmi"): 0.5, ("bmi", "crp"): 2.0},
        "variances": (4.0, 3.0, 12.0, 1.0),
    }
    run = written(tmp_path / "run", edges, verdict={**VERDICT, "contradicted": [doubt]}, **changes)
    text = run_command(capsys, "effect", run, "--from", "bmi", "--to", "crp").out
    assert (doubt in text) == told
    assert ("contradict what is assumed of 'age'" in text) == (not told)
    assert f"be careful: {doubt}" in asked(capsys, run, "bmi", "crp")["in_words"]


def test_a_change_goes_along_the_curve_of_what_is_adjusted_for(capsys, tmp_path):
    """It is 2 at 1 and 7 at 3; the errors of the points beside are taken by their shares, -1/2, 0 and 1/2."""
    total = {
        "source": "a", "adjusted_for": [], "at": [-2.0, 0.0, 2.0, 4.0],
        "covariance": [[0.5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 2.0]],
        "below": [{"target": "c", "change": [7.0, 0.0, 4.0, 10.0], "residual_variance": 2.0}],
    }  # fmt: skip
    other = {**total, "adjusted_for": ["b"], "below": [{**total["below"][0], "change": [0.0, 0.0, 1.0, 1.0]}]}
    run = written(
        tmp_path / "run", DIRECTED, estimation={"n_samples": 100, "noise_std": 0.0, "draws": 0},
        curves={"rows": 100, "variables": ["a"], "effects": [], "total": [other, total]},
    )  # fmt: skip
    report = asked(capsys, run, "a", "c", "--change", 1, 3)
    assert (report["change"], report["verdict"]) == ([1.0, 3.0], "identified")
    (value,) = report["effects"][0]["values"]
    assert value["effect"] == pytest.approx(7.0 - 2.0)
    assert value["standard_error"] == pytest.approx((0.5**2 * 2.0 * 2.0) ** 0.5)
    assert value["standardised"] == pytest.approx(5.0 / np.sqrt(28))
    assert any("counted from the mean of its site" in text for text in report["in_words"])
    assert not any("straight lines" in text for text in report["in_words"])
    lines = asked(capsys, run, "a", "c")
    assert any("--change A B" in text for text in lines["in_words"])
    (through,) = lines["effects"][0]["values"]
    assert (through["standard_error"], through["interval"]) == (None, None), "the scatter about such a line is uneven"
    assert any(text.startswith("no intervals: the scatter about a line") for text in lines["in_words"])
    (line,) = asked(capsys, run, "b", "c", "--change", 1, -0.5)["effects"][0]["values"]
    (unit,) = asked(capsys, run, "b", "c")["effects"][0]["values"]
    assert (line["effect"], line["interval"]) == (-1.5 * unit["effect"], [-1.5 * end for end in unit["interval"]][::-1])
    assert line["standard_error"] == pytest.approx(1.5 * unit["standard_error"])
    for words, said in (
        (["--from", "a", "--change", 1, 5], "reaches from -2 to 4"),
        (["--from", "a", "--change", 1, 1], "two different numbers"),
        (["--from", "a", "--change", 1, "nan"], "two different numbers"),
        (["--from", "a", "--from", "b", "--change", 0, 1], "that of one variable"),
    ):
        outcome = run_command(capsys, "effect", run, *words, "--to", "c")
        assert (outcome.code, said in outcome.err) == (2, True)


def test_a_change_along_a_curve_whose_total_is_not_known_is_not_told_as_that_of_a_line(capsys, tmp_path):
    curve = {"source": "b", "target": "c", "at": [-1.0, 1.0], "change": [1.0, 1.0], "error": [0.1, 0.1], "spread": 1.0}
    run = written(
        tmp_path / "run", DIRECTED, estimation={"n_samples": 100, "noise_std": 0.1, "draws": 0},
        curves={"rows": 100, "variables": ["b"], "effects": [curve]},
    )  # fmt: skip
    for source in "ab":
        report = asked(capsys, run, source, "c", "--change", -6, 0)
        (row,) = report["effects"]
        assert (report["verdict"], row["values"]) == ("not known", [])
        assert report["in_words"][0].startswith("not known: effects of 'b' bend, and the run tells no total effect")
        assert any(
            "of straight lines through the curves" in text for text in asked(capsys, run, source, "c")["in_words"]
        )
    (line,) = asked(capsys, run, "a", "b", "--change", -6, 0)["effects"][0]["values"]
    assert line["effect"] == pytest.approx(6 * 0.5)
    assert asked(capsys, run, "c", "b", "--change", -6, 0)["verdict"] == "no path"


def test_levels_of_a_nominal_variable_have_the_intervals_of_their_correlated_columns(capsys, tmp_path):
    """y = 0.5 a + 2 b + variance 12; of the inverse of the covariance of a and b, 1 / (v (1 - 0.6^2))."""
    weights = {("a", "y"): 0.5, ("b", "y"): 2.0}
    run = written(
        tmp_path / "run", [{**edge("x", "y"), "weight": 2.0}], weights=weights, names="aby",
        columns={"a": "x", "b": "x", "y": "y"}, estimation={"n_samples": 100, "noise_std": 0.0, "draws": 0},
        fit={"x": {
            "r2": None, "intercept": None, "residual_variance": None, "residual_correlation": [[1.0, -0.6], [-0.6, 1.0]]
        }},
    )  # fmt: skip
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    (run / "result.json").write_text(json.dumps({**result, "variables": ["x", "y"]}), encoding="utf-8")
    rows = asked(capsys, run, "x", "y")["effects"]
    assert [row["values"][0]["effect"] for row in rows] == pytest.approx([0.5, 2.0])
    assert asked(capsys, run, "b", "y")["effects"] == rows[1:], "of one level, named by its column"
    errors = [row["values"][0]["standard_error"] for row in rows]
    assert errors == pytest.approx([np.sqrt(12 / 100 / (one * (1 - 0.36))) for one in (4, 3)])


def test_each_level_has_a_verdict_of_its_own(capsys, tmp_path):
    """x - y undirected: either effect is there or 0. Of a, 0 there as well, every graph says 0."""
    weights = {("a", "y"): 0.0, ("b", "y"): 2.0}
    run = written(
        tmp_path / "run", [{**edge("x", "y", "nobody"), "weight": 2.0}], weights=weights, names="aby",
        columns={"a": "x", "b": "x", "y": "y"}, variables=["x", "y"],
    )  # fmt: skip
    report = asked(capsys, run, "x", "y")
    assert [(row["source"], row["verdict"]) for row in report["effects"]] == [
        ("a", "no path"),
        ("b", "not identified"),
    ]
    assert report["verdict"] == "differs by column"
    assert any(line.startswith("of a on y, no path") for line in report["in_words"])
    assert any(line.startswith("of b on y, not identified") for line in report["in_words"])


def test_an_effect_names_the_undecided_arrows_that_it_rests_on_and_is_not_identified(capsys, tmp_path):
    """a -- b -> c, where the class has a -> b: whichever way it points, c has no effect on a."""
    shares = {"adjacent": 1.0, "forward": 0.3, "backward": 0.7}
    open_edge = {**edge("a", "b", "undecided"), "directed": False, "bootstrap": shares}
    run = written(
        tmp_path / "run", [open_edge, edge("b", "c")], verdict=VERDICT, paths={"a": {"c": 0.3}, "b": {"c": 1.0}}
    )
    report = asked(capsys, run, "a", "c")
    assert (report["verdict"], report["open"], report["undecided"]) == ("not identified", True, [["a", "b"]])
    assert report["effects"][0]["values"][0]["effect"] == pytest.approx(1.0)
    assert report["in_words"][0].startswith(
        "not identified: the direction of a -> b is open: less than 75 % of the bootstrap draws agree"
    )
    assert any("from 'a' to 'c' in 30 % of the 50 bootstrap draws" in line for line in report["in_words"])
    assert "effect of a on c in the best graphs" in run_command(capsys, "effect", run, "--from", "a", "--to", "c").out
    against = asked(capsys, run, "c", "a")
    assert (against["verdict"], against["open"]) == ("no path", False)
    further = asked(capsys, run, "b", "c")
    assert (further["verdict"], further["undecided"]) == ("identified", []), "whichever way a -- b points"


def test_an_open_effect_that_the_best_class_lacks_is_never_called_none(capsys, tmp_path):
    """The class has a -> b, seven draws of ten b -> a: of b on a, its 0 says nothing."""
    shares = {"adjacent": 1.0, "forward": 0.3, "backward": 0.7}
    open_edge = {**edge("a", "b", "undecided"), "directed": False, "bootstrap": shares}
    run = written(tmp_path / "run", [open_edge, edge("b", "c")], verdict=VERDICT, paths={"b": {"a": 0.7, "c": 1.0}})
    report = asked(capsys, run, "b", "a")
    assert (report["verdict"], report["undecided"]) == ("not identified", [["a", "b"]])
    assert report["effects"] == [{"source": "b", "target": "a", "verdict": "not identified", "values": []}]
    text = run_command(capsys, "effect", run, "--from", "b", "--to", "a").out
    assert text.startswith("not identified: the direction of a -> b is open")
    for said in (text, json.dumps(report)):
        assert "no effect" not in said
        assert '"identified' not in said
        assert "+0" not in said


def test_an_effect_that_most_draws_have_the_other_way_is_open_without_an_undecided_arrow(capsys, tmp_path):
    run = written(tmp_path / "run", DIRECTED, verdict=VERDICT, paths={"a": {"b": 1.0}, "c": {"a": 0.3}})
    assert asked(capsys, run, "a", "b")["verdict"] == "identified"
    report = asked(capsys, run, "c", "a")
    assert (report["verdict"], report["open"], report["undecided"]) == ("not identified", True, [])
    assert report["in_words"][0].startswith(
        "not identified: whether a directed path leads from 'c' to 'a' is open: 30 %"
    )
    run = written(tmp_path / "back", DIRECTED, verdict=VERDICT, paths={"c": {"a": 0.3}})
    words = asked(capsys, run, "a", "c")["in_words"]
    assert words[0].startswith("not identified: the direction between 'a' and 'c' is open")


def test_an_effect_names_the_edge_that_the_fewest_draws_have_of_those_that_it_rests_on(capsys, tmp_path):
    """a -> b -> c: b on c rests on both, as a is adjusted for; a on b does not rest on b -> c."""
    edges = [
        edge("a", "b", "knowledge", bootstrap={"adjacent": 0.93, "forward": 0.93, "backward": 0.0}),
        edge("b", "c", "knowledge", bootstrap={"adjacent": 0.57, "forward": 0.57, "backward": 0.0}),
    ]
    run = written(tmp_path / "run", edges, verdict=VERDICT)
    report = asked(capsys, run, "a", "c")
    assert report["verdict"] == "identified"
    assert report["least_drawn"] == {"source": "b", "target": "c", "mark": "->", "share": 0.57}
    assert (
        "of the edges that this rests on, b -> c is in the fewest bootstrap draws: in 57 % of 50" in report["in_words"]
    )
    assert asked(capsys, run, "b", "c")["least_drawn"]["share"] == 0.57
    assert asked(capsys, run, "a", "b")["least_drawn"]["share"] == 0.93
    assert asked(capsys, run, "c", "a")["least_drawn"] is None


def test_an_effect_names_pairs_without_an_edge_that_open_another_way_in_some_draws(capsys, tmp_path):
    """a -> b -> c, and d apart: a - c is another way to c; b - d is one to d alone."""
    unsure = [
        {"source": "c", "target": "a", "adjacent": 0.4, "forward": 0.1, "backward": 0.2},
        {"source": "b", "target": "d", "adjacent": 0.6, "forward": 0.6, "backward": 0.0},
    ]
    run = written(tmp_path / "run", DIRECTED, verdict=VERDICT, names="abcd", unsure=unsure)
    report = asked(capsys, run, "a", "c")
    assert report["verdict"] == "identified"
    assert [(one["source"], one["target"]) for one in report["other_ways"]] == [("c", "a")], "d leads nowhere"
    assert report["other_ways"][0]["share"] == pytest.approx(0.4 - 0.1), "0.1 of the draws have c -> a"
    assert (
        "not in the graph, but in some of the 50 bootstrap draws, and there perhaps another way from 'a' to 'c': "
        "c and a are linked in 30 %"
    ) in report["in_words"]
    assert asked(capsys, run, "b", "c")["other_ways"] == [], "a comes before b"
    (way,) = asked(capsys, run, "a", "d")["other_ways"]
    assert way == {"source": "b", "target": "d", "share": 0.6}
    without = written(tmp_path / "without", DIRECTED, verdict={**VERDICT, "draws": 0})
    assert asked(capsys, without, "a", "c")["other_ways"] is None


def test_a_private_run_whose_noise_hides_the_variances_is_not_told_to_search_or_to_copy_files(capsys, tmp_path):
    run = written(
        tmp_path / "run", [], not_written={"lgbn.json": "the noise hides them"},
        privacy={"guarantee": "", "no_guarantee_because": [], "sites": {}},
        estimation={"n_samples": 100, "noise_std": 0.3, "draws": 0},
    )  # fmt: skip
    (run / "lgbn.json").unlink()
    outcome = run_command(capsys, "effect", run, "--from", "a", "--to", "b")
    assert outcome.code == 9
    assert "a larger epsilon" in outcome.err
    assert "Copy" not in outcome.err
    assert "moments_rounds" not in outcome.err


@pytest.mark.parametrize(
    ("sets", "sources", "words"),
    [
        ([[[]], [["crp", "plate"]]], ["a"], "nothing, or crp and plate"),
        ([[["b", "c", "d"]]], ["a"], "b, c and d"),
        ([[["b"]]] * 5, ["a"], "b, or b, or b, or 2 more sets"),
        ([[[], ["c"]]], ["a", "b"], "for a nothing, for b c"),
    ],
)
def test_what_was_adjusted_for_is_said_in_words(sets, sources, words):
    assert _sets_in_words(sets, sources) == words


@pytest.mark.parametrize("noise_std", [0.0, 0.01])
def test_an_effect_against_the_arrows_is_none_but_for_what_noise_hides(noise_std, capsys, tmp_path):
    estimation = {"n_samples": 100, "noise_std": noise_std, "draws": 0}
    report = asked(capsys, written(tmp_path / "run", DIRECTED, estimation=estimation), "c", "a")
    missed = "the noise of privacy hides faint edges, and an effect along one would be missed"
    assert any(missed in line for line in report["in_words"]) == bool(noise_std)
    assert report["verdict"] == "no path"
    assert "too faint" in report["in_words"][0]
    (told,) = report["effects"][0]["values"]
    assert (told["effect"], told["standard_error"], told["interval"]) == (0.0, None, None)


def test_a_chain_without_directions_leaves_an_effect_open_and_says_that_0_is_among_the_values(capsys, tmp_path):
    """a -> b -> c: 0.5; a <- b -> c and a <- b <- c: no effect of a."""
    run = written(tmp_path / "run", UNDIRECTED)
    report = asked(capsys, run, "a", "b")
    assert report["verdict"] == "not identified"
    assert [value["effect"] for value in report["effects"][0]["values"]] == pytest.approx([0.0, 0.5])
    assert any("0 is among them" in sentence for sentence in report["in_words"])
    assert any("no intervals" in sentence for sentence in report["in_words"])
    assert report["effects"][0]["values"][1]["interval"] is None
    shown = run_command(capsys, "effect", run, "--from", "a", "--to", "b")
    assert "effect of a on b" in shown.out
    assert "not identified" in shown.out
    none, value = (line for line in shown.out.splitlines() if "│" in line)
    assert ("none" in none, "none: b is a cause" in none, "0.000" in none) == (True, True, False)
    assert ("+0.500" in value, "nothing" in value) == (True, True)


def test_units_stand_beside_names(capsys, tmp_path):
    run = written(tmp_path / "run", DIRECTED, units={"a": "mg/l"})
    assert asked(capsys, run, "a", "b")["units"] == {"a": "mg/l", "b": None}
    assert "effect of a (mg/l) on b" in run_command(capsys, "effect", run, "--from", "a", "--to", "b").out


def test_effects_of_one_sign_are_a_range(capsys, tmp_path):
    """a - b, a -> c, b -> c: the effect of a on c is direct, or direct and through b."""
    weights = {("a", "b"): 0.5, ("b", "c"): 2.0, ("a", "c"): 1.0}
    edges = [edge("a", "b", "nobody"), edge("b", "c"), {**edge("b", "c"), "source": "a"}]
    report = asked(capsys, written(tmp_path / "run", edges, weights=weights), "a", "c")
    assert report["verdict"] == "range"
    values = report["effects"][0]["values"]
    assert [value["effect"] for value in values] == pytest.approx([1.0, 2.0])
    assert [value["adjusted_for"] for value in values] == [[[["b"]]], [[[]]]]


def test_variables_that_are_set_together_have_joint_effects(capsys, tmp_path):
    report = asked(capsys, written(tmp_path / "run", DIRECTED), "a", "c", "--from", "b")
    assert [row["source"] for row in report["effects"]] == ["a", "b"]
    assert [row["values"][0]["effect"] for row in report["effects"]] == pytest.approx([0.0, 2.0])


def test_directions_by_assumption_are_said_to_matter(capsys, tmp_path):
    edges = [edge("a", "b", "assumption"), edge("b", "c", "assumption")]
    run = written(tmp_path / "run", edges, graph_class="dag-equal-variance")
    assert any(
        "2 edges have their directions by the assumption" in text for text in asked(capsys, run, "a", "c")["in_words"]
    )


def test_what_cannot_be_answered_is_refused_with_the_reason(capsys, tmp_path):
    run = written(tmp_path / "run", DIRECTED, levels={"a": ["m", "w"]})
    for words, said in (
        (["--from", "x", "--to", "c"], "'x' is not a variable of the run, which has 'a', 'b', 'c'"),
        (["--from", "b=no", "--to", "c"], "'b' is one column: name it without a level"),
        (["--from", "a=w", "--to", "c"], "'a' is one column, 'm' is 0, 'w' is 1: name it without a level"),
        (["--from", "c", "--to", "c"], "expected different variables"),
    ):
        outcome = run_command(capsys, "effect", run, *words)
        assert outcome.code == 2
        assert said in outcome.err
    (run / "lgbn.json").unlink()
    outcome = run_command(capsys, "effect", run, "--from", "a", "--to", "c")
    assert outcome.code == 9
    assert "lgbn.json, which effects are computed from" in outcome.err


def test_a_simulated_run_of_a_class_answers(capsys, tmp_path):
    data, run = tmp_path / "data", tmp_path / "run"
    synth = ["--nodes", 5, "--edges", 5, "--sites", 3, "--rows", 500, "--seed", 3]
    assert run_command(capsys, "data", "synth", *synth, "--out", data).code == 0
    settings = ["--set", "graph_class=cpdag"]
    assert run_command(capsys, "simulate", "lean", "--data", data, *settings, "--out", run).code == 0
    first = json.loads((run / "result.json").read_text(encoding="utf-8"))["edges"][0]
    report = asked(capsys, run, first["source"], first["target"])
    values = [value["effect"] for value in report["effects"][0]["values"]]
    assert any(value != 0.0 for value in values)
    assert (report["verdict"] == "identified") == (len(values) == 1)


def test_an_effect_that_is_none_says_whether_the_target_is_a_cause_in_all_graphs_without_a_path():
    assert _no_path([[["target"]], [["target", "crp"]]], "target") == "none: target is a cause"
    assert _no_path([[["target"]], [["crp"]]], "target") == "none: no path"


def test_of_two_variables_that_are_set_the_one_before_the_other_has_no_path_past_it(capsys, tmp_path):
    run = written(tmp_path / "run", DIRECTED)
    report = asked(capsys, run, "a", "c", "--from", "b")
    (words,) = (text for text in report["in_words"] if text.startswith("of a on c"))
    assert words == (
        "of a on c, no path: in none of the best graphs does a directed path lead from 'a', past the others that "
        "are set, to 'c'; an effect that is too faint for these rows or has no linear part (a U, say) would look "
        "the same"
    )
    nothing = asked(capsys, run, "b", "a", "--from", "c")["in_words"]
    assert [text for text in nothing if text.startswith("no path: ") and "lead from 'b' and 'c' to 'a'" in text]


GAPS = {"iterations": 3, "converged": True, "known_share": 0.5, "values": {}, "complete_rows": 0, "differ": {}}


@pytest.mark.parametrize(
    ("source", "target", "pair", "verdict"),
    [
        ("a", "c", "ac", "not known"),  # the pair itself
        ("b", "c", "ac", "not known"),  # a is adjusted for
        ("a", "b", "ac", "identified"),
        ("c", "a", "ac", "not known"),
        ("b", "a", "ac", "not known"),  # b -> c -> a would be a path
        ("c", "b", "ab", "no path"),  # an edge between a and b makes none that begins at c
    ],
)
def test_an_effect_or_its_absence_that_rests_on_a_pair_that_no_row_has_is_not_known(
    source, target, pair, verdict, capsys, tmp_path
):
    run = written(tmp_path / "run", DIRECTED, gaps={**GAPS, "never_together": [list(pair)]})
    report = asked(capsys, run, source, target)
    assert report["verdict"] == verdict
    if verdict == "not known":
        assert report["effects"][0]["values"] == []
        assert report["in_words"] == [
            f"not known: no row has a value of both {pair[0]!r} and {pair[1]!r}, and whether there is an effect rests "
            "on this pair"
        ]


@pytest.mark.parametrize("told", ["not_described", "unexplained"])
@pytest.mark.parametrize(
    ("source", "target", "pair", "verdict"),
    [
        ("d", "c", "dc", "not known"),  # the pair itself, without an edge
        ("c", "d", "dc", "not known"),  # either way round
        ("d", "c", "ad", "not known"),  # d -> a -> b -> c would be a path
        ("d", "a", "dc", "no path"),  # an edge between d and c makes none
        ("c", "b", "bc", "no path"),  # the pair has an edge, and it has a direction
        ("a", "c", "ac", "not identified"),  # a second path
        ("b", "c", "ac", "identified"),  # a confounds the two already, and is adjusted for
        ("b", "c", "bd", "identified"),  # d leads nowhere
        ("b", "c", "ad", "identified"),  # as before: past a
        ("a", "b", "bc", "identified"),
    ],
)
def test_what_an_edge_would_turn_that_the_data_ask_for_and_the_graph_lacks_is_not_told(
    source, target, pair, verdict, told, capsys, tmp_path
):
    estimation = {"n_samples": 100, "noise_std": 0.0, "draws": 0}
    run = written(
        tmp_path / "run", DIRECTED, names="abcd", estimation=estimation, verdict={**VERDICT, told: [list(pair)]}
    )
    report = asked(capsys, run, source, target)
    assert report["verdict"] == verdict
    values = report["effects"][0]["values"]
    if verdict in ("not known", "not identified"):
        assert "has no edge there" in report["in_words"][0]
        assert not any(one["interval"] for one in values)
    if verdict == "not known":
        assert values == []
    if verdict == "identified" and told == "unexplained":
        assert values[0]["interval"]


def test_a_missing_confounder_leaves_an_effect_not_identified(capsys, tmp_path):
    """d -> c <- b, and what b and d have in common is not explained: d is a cause of b, or the other way round."""
    weights = {("b", "c"): 2.0, ("d", "c"): 1.0}
    edges = [{**edge("b", "c", "knowledge"), "source": s, "target": t, "weight": w} for (s, t), w in weights.items()]
    verdict = {**VERDICT, "unexplained": [["b", "d"]]}
    run = written(
        tmp_path / "run", edges, weights=weights, names="abcd", variances=(4.0, 3.0, 12.0, 1.0), verdict=verdict
    )
    assert asked(capsys, run, "b", "c")["verdict"] == "not identified"
    assert asked(capsys, run, "b", "d")["verdict"] == "not known"
    assert asked(capsys, run, "a", "c")["verdict"] == "no path"


def test_of_two_sources_the_one_without_a_path_is_not_called_so_where_an_edge_is_missing(capsys, tmp_path):
    run = written(tmp_path / "run", DIRECTED, names="abcd", verdict={**VERDICT, "unexplained": [["d", "c"]]})
    report = asked(capsys, run, "b", "c", "--from", "d")
    assert [row["verdict"] for row in report["effects"] if row["source"] == "d"] == ["not identified"]
    assert [row["values"] for row in report["effects"] if row["source"] == "d"] == [[]]


@pytest.mark.parametrize(("pair", "verdict"), [("ac", "not known"), ("ad", "not known"), ("", "identified")])
def test_whatever_is_hidden_rests_on_every_link_that_is_not_there(pair, verdict, tmp_path):
    """a o-> b <-o d shows that nothing hidden is behind b --> c: a and d have no link to each other, nor to c."""
    network = read_network(with_marks(tmp_path / "run"))
    network = replace(network, unexplained=tuple([(pair[0], pair[1])] if pair else []))
    assert EffectsIfHidden(network, network.pag).of([1], 2).verdict == verdict


def test_what_is_hidden_may_act_along_circles_of_the_marks(tmp_path):
    """The class has c -> b alone, and the marks leave it open: if a acted on b, it might act on c."""
    weights = {("c", "b"): 2.0}
    network = read_network(with_marks(tmp_path / "run", weights=weights, marks=(("b", "c", "circle"),)))
    pag = network.pag.copy()
    pag[2, 1], pag[1, 2] = 1, 1
    for pairs, verdict in (((("a", "b"),), "not known"), ((), "no path")):
        assert EffectsIfHidden(replace(network, unexplained=pairs), pag).of([0], 2).verdict == verdict


def test_other_sets_of_the_class_are_named_beside_the_answer_that_holds_if_causes_are_hidden(capsys, tmp_path):
    words = "other variables are adjusted for below"
    assert words not in asked(capsys, with_marks(tmp_path / "same"), "b", "c")["hidden_causes"]["in_words"]
    run = with_marks(tmp_path / "fewer", weights={("a", "b"): 0.5, ("b", "c"): 2.0})
    assert words in asked(capsys, run, "b", "c")["hidden_causes"]["in_words"]


def test_a_missing_confounder_further_up_leaves_an_effect_not_identified(capsys, tmp_path):
    """a -> d and a -> c <- b: an edge d -> b would make a a cause of both, and no directed path more."""
    weights = {("a", "d"): 0.5, ("a", "c"): 1.0, ("b", "c"): 2.0}
    edges = [{**edge("b", "c", "knowledge"), "source": s, "target": t, "weight": w} for (s, t), w in weights.items()]
    kinds = {"weights": weights, "names": "abcd", "variances": (4.0, 3.0, 12.0, 1.0)}
    run = written(tmp_path / "run", edges, verdict={**VERDICT, "unexplained": [["b", "d"]]}, **kinds)
    assert asked(capsys, run, "b", "c")["verdict"] == "not identified"
    run = written(tmp_path / "other", edges, verdict=VERDICT, **kinds)
    assert asked(capsys, run, "b", "c")["verdict"] == "identified"


def test_where_draws_have_a_path_their_share_is_told_rather_than_the_missing_edge(capsys, tmp_path):
    verdict = {**VERDICT, "unexplained": [["c", "a"]]}
    run = written(tmp_path / "run", DIRECTED, verdict=verdict, paths={"c": {"a": 0.3}})
    report = asked(capsys, run, "c", "a")
    assert report["verdict"] == "not identified"
    assert "30 % of the bootstrap draws have one" in report["in_words"][0]


def test_each_of_several_sources_is_asked_for_its_own_path(capsys, tmp_path):
    """b -> c and d -> a: d would act on c, too, by an edge between a and c."""
    weights = {("b", "c"): 2.0, ("d", "a"): 1.0}
    edges = [{**edge("b", "c", "knowledge"), "source": s, "target": t, "weight": w} for (s, t), w in weights.items()]
    kinds = {"weights": weights, "names": "dbac", "variances": (4.0, 3.0, 12.0, 1.0)}
    run = written(tmp_path / "run", edges, verdict={**VERDICT, "unexplained": [["a", "c"]]}, **kinds)
    for first, second in ("bd", "db"):
        rows = asked(capsys, run, first, "c", "--from", second)["effects"]
        assert {row["source"]: row["verdict"] for row in rows} == {"b": "not identified", "d": "not identified"}
    run = written(tmp_path / "gaps", edges, gaps={**GAPS, "never_together": [["a", "c"]]}, **kinds)
    assert asked(capsys, run, "b", "c", "--from", "d")["verdict"] == "not known"


def test_a_change_along_lines_that_the_data_contradict_is_not_known(capsys, tmp_path):
    taken = {"form": "line", "family": "linear", "how": "", "why": "no curves were looked for: too few rows"}
    verdict = {**VERDICT, "not_described": [["a", "b"]]}
    run = written(tmp_path / "run", DIRECTED, verdict=verdict, taken=dict.fromkeys("abc", taken))
    assert asked(capsys, run, "a", "b")["verdict"] == "identified"
    report = asked(capsys, run, "a", "b", "--change", 0, 1)
    assert (report["verdict"], report["effects"][0]["values"]) == ("not known", [])
    assert "straight lines do not describe how b depends on a" in report["in_words"][0]
    assert "no curve there (no curves were looked for: too few rows); a run without" in report["in_words"][0]


def test_where_no_curves_were_looked_for_every_effect_says_so(capsys, tmp_path):
    taken = {"form": "line", "family": "linear", "how": "", "why": "no curves were looked for: the plan does not ask"}
    run = written(tmp_path / "run", DIRECTED, taken=dict.fromkeys("abc", taken))
    words = "straight lines alone: no curves were looked for: the plan does not ask"
    for source, target, more in (("a", "b", ("--change", 0, 1)), ("b", "a", ()), ("a", "b", ())):
        told = asked(capsys, run, source, target, *more)
        assert any(words in one for one in told["in_words"])
        assert told["straight_lines_alone"] == "no curves were looked for: the plan does not ask"
    run = written(tmp_path / "looked", DIRECTED)
    told = asked(capsys, run, "a", "b")
    assert told["straight_lines_alone"] is None
    assert "straight lines alone" not in " ".join(told["in_words"])


def test_a_variable_that_noise_hides_is_left_out_of_the_network_file_and_the_others_have_their_effects(
    capsys, tmp_path
):
    run = written(tmp_path / "run", DIRECTED, names="abcd", unused=[{"variable": "d", "level": None, "why": "hidden"}])
    network = json.loads((run / "lgbn.json").read_text())
    assert (network["nodes"], network["not_known"]) == (["a", "b", "c"], ["d"])
    assert list(network["cpds"]) == ["a", "b", "c"]
    assert asked(capsys, run, "a", "c")["effects"][0]["values"][0]["effect"] == pytest.approx(1.0)
    assert asked(capsys, run, "a", "d")["verdict"] == "not known"


COLLIDER = {("a", "b"): 0.5, ("d", "b"): 1.0, ("b", "c"): 2.0}


MARKS = (("a", "b", "circle"), ("d", "b", "circle"), ("b", "c", "tail"))


def with_marks(
    folder, *, share=1.0, none=1.0, marks=MARKS, legal=True, draws=True, weights=COLLIDER, noise_std=0.0, **more
):
    """a o-> b <-o d and b --> c, behind which nothing is hidden: a acts on b, perhaps, and has no edge to c."""
    links = [
        {"source": s, "target": t, "mark_source": mark, "mark_target": "arrow", "says": "", "bootstrap": None}
        for s, t, mark in marks
    ]
    effects = [{"source": "b", "target": "c", "adjusted_for": ["a", "d"], "share": share}] if draws else None
    no_path = [{"source": "c", "target": "a", "share": none}]
    told = {"links": links, "gone": [], "legal": legal, "effects": effects, "no_path": no_path}
    edges = [{**edge("a", "b", "knowledge"), "source": s, "target": t, "weight": w} for (s, t), w in weights.items()]
    return written(
        folder, edges, weights=weights, names="abcd", variances=(4.0, 3.0, 12.0, 1.0), hidden_causes=told,
        estimation={"n_samples": 100, "noise_std": noise_std, "draws": 0}, **more,
    )  # fmt: skip


def test_an_effect_that_the_marks_identify_is_told_whatever_is_hidden(capsys, tmp_path):
    hidden = asked(capsys, with_marks(tmp_path / "run"), "b", "c")["hidden_causes"]
    assert (hidden["verdict"], hidden["adjusted_for"], hidden["share"]) == ("identified", ["a", "d"], 1.0)
    ((value,),) = [row["values"] for row in hidden["effects"]]
    assert value["effect"] == pytest.approx(2.0)
    # Of a regression of c on b, a and d: what is left of c, by what a and d leave of b.
    assert value["standard_error"] == pytest.approx(np.sqrt(12 / 3 / 100))
    assert value["adjusted_for"] == [[["a", "d"]]]


def test_of_two_that_are_set_together_each_has_its_effect_past_the_other(capsys, tmp_path):
    run = with_marks(tmp_path / "run")
    outcome = run_command(capsys, "effect", run, "--from", "a", "--from", "b", "--to", "c", "--json")
    hidden = json.loads(outcome.out)["hidden_causes"]
    assert (hidden["verdict"], hidden["share"]) == ("identified", None)
    assert [row["values"][0]["effect"] for row in hidden["effects"]] == pytest.approx([0.0, 2.0])
    assert "not counted" in hidden["in_words"]
    hidden = asked(capsys, with_marks(tmp_path / "undrawn", draws=False), "b", "c")["hidden_causes"]
    assert (hidden["verdict"], hidden["share"]) == ("identified", None)


@pytest.mark.parametrize(
    ("source", "target", "changes", "verdict", "words"),
    [
        ("a", "c", {}, "not identified", "the marks leave open whether 'a' acts on 'b'"),
        ("b", "c", {"marks": MARKS[2:]}, "not identified", "a hidden cause of both may add"),
        ("b", "c", {"share": 0.89}, "not identified", "89 %"),
        ("b", "c", {"legal": False}, "not known", "contradict each other"),
        ("b", "c", {"verdict": {**VERDICT, "functions": [["a", "b", "d"]]}}, "not identified", "functions"),
        ("c", "a", {"none": 0.8}, "not identified", "80 %"),
    ],
)
def test_where_something_hidden_may_explain_it_the_effect_is_not_identified(
    source, target, changes, verdict, words, capsys, tmp_path
):
    hidden = asked(capsys, with_marks(tmp_path / "run", **changes), source, target)["hidden_causes"]
    assert (hidden["verdict"], hidden["effects"]) == (verdict, [])
    assert words in hidden["in_words"]


@pytest.mark.parametrize(("pair", "ends"), [((3, 2), (1, 2)), ((0, 2), (2, 0))])
def test_what_rests_on_variables_that_no_row_has_together_is_not_known(pair, ends, tmp_path):
    network = read_network(with_marks(tmp_path / "run"))
    assert EffectsIfHidden(network, network.pag).of(ends[:1], ends[1]).verdict in ("identified", "no path")
    unseen = np.zeros((4, 4), dtype=bool)
    unseen[pair] = unseen[pair[::-1]] = True
    told = EffectsIfHidden(replace(network, unseen=unseen), network.pag).of(ends[:1], ends[1])
    assert (told.verdict, told.because) == ("not known", "unseen")


@pytest.mark.parametrize(
    ("pair", "because"), [("ac", "missing_edges"), ("ca", "missing_edges"), ("db", ""), ("bc", "")]
)
def test_no_path_that_a_curve_without_a_link_would_make_is_not_known(pair, because, tmp_path):
    network = read_network(with_marks(tmp_path / "run"))
    network = replace(network, not_described=((pair[0], pair[1]),))
    told = EffectsIfHidden(network, network.pag).of([2], 0)
    assert (told.verdict, told.because) == ("not known" if because else "no path", because)


def test_no_interval_stands_beside_a_line_that_the_data_contradict(capsys, tmp_path):
    verdict = {**VERDICT, "not_described": [["a", "b"]]}
    hidden = asked(capsys, with_marks(tmp_path / "run", verdict=verdict), "b", "c")["hidden_causes"]
    (value,) = hidden["effects"][0]["values"]
    assert value["effect"] == pytest.approx(2.0)
    assert value["interval"] is None


def test_no_interval_stands_beside_a_line_further_on_the_way_that_the_data_contradict(capsys, tmp_path):
    marks = (("d", "a", "circle"), ("a", "b", "tail"), ("b", "c", "tail"))
    weights = {("d", "a"): 1.0, ("a", "b"): 0.5, ("b", "c"): 2.0}
    for pairs, told in (([], True), ([["b", "c"]], False)):
        verdict = {**VERDICT, "not_described": pairs}
        run = with_marks(tmp_path / f"{told}", marks=marks, weights=weights, draws=False, verdict=verdict)
        report = asked(capsys, run, "a", "c")
        for effects in (report["hidden_causes"]["effects"], report["effects"]):
            (value,) = effects[0]["values"]
            assert value["effect"] == pytest.approx(1.0)
            assert (value["interval"] is not None) == told


def test_a_change_along_a_curve_is_not_told_by_another_set(capsys, tmp_path):
    below = [{"target": "c", "change": [-4.0, 0.0, 4.0], "residual_variance": 1.0}]
    total = [
        {"source": "b", "adjusted_for": ["a"], "at": [-2.0, 0.0, 2.0], "covariance": np.eye(3).tolist(), "below": below}
    ]
    curves = {"rows": 100, "variables": ["b"], "effects": [], "total": total}
    run = with_marks(tmp_path / "run", curves=curves)
    hidden = asked(capsys, run, "b", "c", "--change", 0, 1)["hidden_causes"]
    assert (hidden["verdict"], hidden["effects"]) == ("identified", [])
    assert "no curve is adjusted for this" in hidden["in_words"]


def test_nothing_hidden_acts_against_the_arrowheads(capsys, tmp_path):
    hidden = asked(capsys, with_marks(tmp_path / "run"), "c", "a")["hidden_causes"]
    assert (hidden["verdict"], hidden["effects"]) == ("no path", [])


def test_under_the_assumption_and_without_marks_the_effect_says_that_it_rests_on_it(capsys, tmp_path):
    report = asked(capsys, with_marks(tmp_path / "run"), "b", "c", "--no-hidden-causes")
    assert report["hidden_causes"] is None
    assert "holds only if no common cause is hidden, as is assumed" in report["in_words"]
    report = asked(capsys, written(tmp_path / "other", DIRECTED), "a", "c")
    assert any("the run does not tell what holds otherwise" in line for line in report["in_words"])


def test_the_terminal_shows_first_what_holds_whatever_is_hidden(capsys, tmp_path):
    out = run_command(capsys, "effect", with_marks(tmp_path / "run"), "--from", "b", "--to", "c").out
    assert out.index("whatever is hidden") < out.index("if no common cause is hidden")
    assert "a and d" in out
