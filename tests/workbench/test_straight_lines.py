"""Runs over tables in which effects are curved: the result says so, and is silent where lines are straight."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError, SetupError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, Units
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import hinges as hinges_rounds
from fedbnsl.rounds.curvature import MOST_PAIRS, NUMBERS_A_PAIR, Answer, Task, n_possible, pairs_of
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.results.curves import clearly_bent
from fedbnsl_server.results.effect_report import effect_of
from fedbnsl_server.results.learned_network import read_network
from fedbnsl_server.rounds import curvature, hinges
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_workbench.report.dag_drawing import THINNEST, WIDEST
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.simulate import simulate
from report_runs import Page

NAMES = ("a", "b", "c", "d")
PLAN = Plan.load("standard").with_settings(bootstrap=0, n_participants=3)
ROUND = 16


def tables(curve: Any, n: int = 600, gaps: float = 0.0) -> dict[str, Dataset]:
    rng, found = np.random.default_rng(4), {}
    for site in ("x", "y", "z"):
        a, d = rng.normal(size=n), rng.normal(size=n)
        b = curve(a) + rng.normal(size=n)
        X = np.column_stack([a, b, b - d + rng.normal(size=n), d]) * [1.0, 10.0, 0.1, 1.0] + 5.0
        X[rng.random(X.shape) < gaps] = np.nan
        found[site] = Dataset(NAMES, X)
    return found


def run(data: dict[str, Dataset], out: Path, plan: Plan = PLAN) -> dict[str, Any]:
    return simulate(plan, data, out)["verdict"]


def test_a_curve_that_no_line_shows_is_found_and_told(tmp_path: Path) -> None:
    data = tables(np.square)
    result = simulate(PLAN, data, tmp_path / "run")
    assert {frozenset((one["source"], one["target"])) for one in result["edges"]} == {
        frozenset(pair) for pair in ("ab", "bc", "cd")
    }
    network = json.loads((tmp_path / "run" / "lgbn.json").read_text(encoding="utf-8"))
    (child,) = (one["target"] for one in result["edges"] if {one["source"], one["target"]} == {"a", "b"})
    assert network["families"] == dict.fromkeys("abcd", "linear") | {child: "curved"}
    assert result["verdict"]["contradicted"] == []
    assert "effects of 'a' bend" in result["verdict"]["assumed"][0]
    assert any("which of 'a' bend by themselves" in text for text in result["verdict"]["not_tested"])
    assert result["curves"]["variables"] == ["a"]
    assert result["curves"]["rows"] == sum(len(one.X) for one in data.values())
    effect = next(one for one in result["curves"]["effects"] if (one["source"], one["target"]) == ("a", "b"))
    at, change, error = (np.array(effect[key]) for key in ("at", "change", "error"))
    middle = np.abs(at) < 2.0  # beyond, few rows
    assert (np.abs(change - 10.0 * at**2)[middle] < 5.0 * error[middle] + 1.5).all(), "a line between knots is near"
    assert error[at == 0.0] == 0.0
    assert ((error > 0.0) & (error < 2.0))[middle & (at != 0.0)].all()
    a = np.concatenate([one.X[:, 0] - one.X[:, 0].mean() for one in data.values()])
    assert effect["spread"] == pytest.approx(10.0 * np.square(a).std(), rel=0.03)


def test_page_and_result_say_how_a_variable_was_taken_and_draw_a_u_as_wide_as_it_is_strong(tmp_path: Path) -> None:
    plan = PLAN.with_settings(knowledge={"forbidden": [["b", "a"]]})
    result = simulate(plan, tables(np.square), tmp_path / "run")
    html = write_report(tmp_path / "run").read_text(encoding="utf-8")
    page = Page(html)
    shown = {row["variable"]: row for row in page.rows("fits")}
    assert {name: (row["taken as"], row["why"]) for name, row in shown.items()} == {
        name: (one["how"], one["why"]) for name, one in result["taken"].items()
    }
    assert {name: one["form"] for name, one in result["taken"].items()} == dict.fromkeys("bcd", "line") | {"a": "curve"}
    weights = {frozenset((one["source"], one["target"])): abs(one["standardised"]) for one in result["edges"]}
    assert weights[frozenset("ab")] < 0.1, "of a straight line"
    assert "the strongest is a \u2192 b (along a curve, without units 0." in page.text
    assert "--change A B tells the total effect" in page.text
    bent = {row["from"] for row in page.rows("effects") if "a line through a curve" in row["what the graph tells"]}
    assert bent == {"a"}
    drawn = re.findall(
        r'<g class="edge[^>]*data-source="(.)" data-target="(.)".*?stroke-width="([\d.]+)"', html, re.DOTALL
    )
    widths = {frozenset((NAMES[int(one)], NAMES[int(other)])): float(width) for one, other, width in drawn}
    assert '<g class="edge curved" data-source="0" data-target="1"' in html, "of a U a sign would be false"
    assert html.count("curved effect: see the plots") == 1
    assert widths[frozenset("ab")] == WIDEST, "2 of 3 parts of the variance of b come from a"
    share = weights[frozenset("bc")] / np.sqrt(2 / 3)
    assert widths[frozenset("bc")] == pytest.approx(THINNEST + (WIDEST - THINNEST) * share, abs=0.1)
    network = json.loads((tmp_path / "run" / "lgbn.json").read_text(encoding="utf-8"))
    curve, line = (float(text) for text in shown["b"]["residual variance"].split(" lines: "))
    assert curve == pytest.approx(result["fit"]["b"]["residual_variance"], rel=1e-3)
    assert line == pytest.approx(network["cpds"]["b"]["variance"][0], rel=1e-3)
    assert line > 2.0 * curve
    assert ["b", shown["b"]["residual variance"].split()[0]] in page.tables[None], "of all columns, too"


def test_curves_and_lines_are_those_of_all_rows_also_of_unlike_sites(tmp_path: Path) -> None:
    """Knots are in pooled units from own means, sites count as their rows, and numbers are in the tables' units."""
    rng, data = np.random.default_rng(8), {}
    for site, n, sd, shift in (("x", 200, 0.6, 5.0), ("y", 1800, 1.4, -3.0)):
        a = sd * rng.normal(size=n)
        b = np.square(a) + rng.normal(size=n)
        d = rng.normal(size=n)
        X = np.column_stack([a + shift, 10.0 * b, b - d + rng.normal(size=n), d])
        data[site] = Dataset(NAMES, X)
    plan = PLAN.with_settings(n_participants=2, knowledge={"required": [["a", "b"]]})
    result = simulate(plan, data, tmp_path / "run")
    own = [one.X - one.X.mean(axis=0) for one in data.values()]
    rows = np.concatenate(own)
    unit = float(np.sqrt(np.mean(rows[:, 0] ** 2)))

    def basis(a: Matrix) -> Matrix:
        return np.column_stack([a / unit, *(np.maximum(a / unit - s, 0.0) for s in hinges_rounds.KNOTS)])

    design = np.concatenate([basis(X[:, 0]) - basis(X[:, 0]).mean(axis=0) for X in own])
    weights = np.linalg.lstsq(design, rows[:, 1], rcond=None)[0]
    effect = next(one for one in result["curves"]["effects"] if (one["source"], one["target"]) == ("a", "b"))
    change = (basis(np.array(effect["at"])) - basis(np.zeros(1))) @ weights
    np.testing.assert_allclose(effect["change"], change, atol=1e-3 * np.abs(change).max())
    left = float(np.mean((rows[:, 1] - design @ weights) ** 2))
    assert result["fit"]["b"]["residual_variance"] == pytest.approx(left, rel=0.02)
    edge = next(one for one in result["edges"] if (one["source"], one["target"]) == ("a", "b"))
    assert edge["weight"] == pytest.approx(rows[:, 0] @ rows[:, 1] / (rows[:, 0] @ rows[:, 0]), abs=2e-3)
    about = rows[:, 1] - edge["weight"] * rows[:, 0]
    white = np.sqrt((rows[:, 0] ** 2 * about**2).sum()) / (rows[:, 0] @ rows[:, 0])
    low, high = edge["interval"]
    assert 0.9 * white < (high - low) / (2.0 * 1.96) < 1.5 * white
    for X, (slope, error) in zip(own, edge["sites"]["estimates"].values(), strict=True):
        square = X[:, 0] @ X[:, 0]
        assert slope == pytest.approx(X[:, 0] @ X[:, 1] / square, abs=2e-3)
        white = np.sqrt((X[:, 0] ** 2 * (X[:, 1] - slope * X[:, 0]) ** 2).sum()) / square
        assert error > 0.9 * white, "the scatter about a line through a curve is uneven: errors are White's"


def test_a_change_along_a_mediated_curve_has_the_effect_that_it_was_drawn_with(tmp_path: Path) -> None:
    """b is 10 a^2, c a hundredth of b, d has no curve on its way to c."""
    plan = PLAN.with_settings(knowledge={"tiers": [["a", "d"], ["b"], ["c"]]})
    simulate(plan, tables(np.square), tmp_path / "run")
    network = read_network(tmp_path / "run")
    for low, high in ((0.0, 1.5), (1.2, -0.3), (-1.0, 1.0)):
        report = effect_of(network, ["a"], "c", (low, high))
        (value,) = report["effects"][0]["values"]
        assert report["verdict"] == "identified"
        assert abs(value["effect"] - 0.1 * (high**2 - low**2)) < 3.0 * value["standard_error"] + 0.01
        assert value["standard_error"] < 0.03
        assert any("along a curve" in text for text in report["in_words"])
    assert any("be careful: beyond" in text for text in effect_of(network, ["a"], "c", (0.0, 2.0))["in_words"])
    assert not any("be careful: beyond" in text for text in report["in_words"])
    (one,), (scaled,) = (
        effect_of(network, ["d"], "c", change)["effects"][0]["values"] for change in (None, (3.0, 1.0))
    )
    assert scaled["effect"] == pytest.approx(-2.0 * one["effect"])
    assert scaled["interval"] == pytest.approx([-2.0 * end for end in reversed(one["interval"])])
    with pytest.raises(SetupError, match=r"reaches from -2\.\d+ to 2\.\d+, counted from the mean of its site"):
        effect_of(network, ["a"], "c", (4.0, 6.0))


def test_along_a_curve_beside_a_jump_no_interval_is_told(tmp_path: Path) -> None:
    """b is 3 above a = 0.3 and 0 below, which hinges round off: from 0.32 to 0.6 nothing changes."""
    plan = PLAN.with_settings(knowledge={"tiers": [["a", "d"], ["b"], ["c"]]})
    result = simulate(plan, tables(lambda a: np.where(a > 0.3, 3.0, 0.0), n=2000), tmp_path / "run")
    assert result["curves"]["variables"] == ["a"]
    assert result["verdict"]["not_described"] == [["a", "b"]]
    network = read_network(tmp_path / "run")
    for target in ("b", "c"):
        report = effect_of(network, ["a"], target, (0.32, 0.6))
        (value,) = report["effects"][0]["values"]
        assert abs(value["standardised"]) > 0.2, "a false answer, which an interval would make look sure"
        assert [value[key] for key in ("interval", "standardised_interval", "standard_error")] == [None] * 3
        assert any(
            text.startswith("no intervals: the data contradict how b depends on a") for text in report["in_words"]
        )
    (beside,) = effect_of(network, ["d"], "c", (0.0, 1.0))["effects"][0]["values"]
    assert beside["interval"][0] < -0.1 < beside["interval"][1], "of an effect that does not rest on the jump"


def test_the_graph_is_the_same_in_other_orders_units_and_signs(tmp_path: Path) -> None:
    data = tables(lambda a: np.where(a > 0.5, 2.0, 0.0) + np.sin(2.0 * a))
    other = {
        site: Dataset(NAMES[::-1], (one.X * [-3.0, 0.1, 1.0, 7.0] + 2.0)[::-1, ::-1]) for site, one in data.items()
    }
    graphs = []
    for name, tables_of_sites in (("one", data), ("other", dict(reversed(other.items())))):
        edges = simulate(PLAN, tables_of_sites, tmp_path / name)["edges"]
        graphs.append({(one["source"], one["target"], one["directed"]) for one in edges if one["directed"]})
        graphs.append({frozenset((one["source"], one["target"])) for one in edges})
    assert graphs[:2] == graphs[2:]


def test_what_a_curve_has_made_skewed_makes_no_edge_beyond_its_cause(tmp_path: Path) -> None:
    rng, data = np.random.default_rng(0), {}
    for site in ("x", "y", "z"):
        a = rng.normal(size=600)
        b = np.square(a) + rng.normal(size=600)
        data[site] = Dataset(("a", "b", "c"), np.column_stack([a, b, b + 0.7 * rng.normal(size=600)]))
    result = simulate(PLAN, data, tmp_path / "run")
    assert {frozenset((one["source"], one["target"])) for one in result["edges"]} == {frozenset("ab"), frozenset("bc")}
    assert "a" in result["curves"]["variables"]


@pytest.mark.parametrize(("shape", "curve", "bent"), [("linear", np.square, []), ("curved", lambda a: 2.0 * a, ["a"])])
def test_the_dictionary_may_say_what_bends(tmp_path: Path, shape: str, curve: Any, bent: list[str]) -> None:
    plan = PLAN.with_settings(dictionary={"a": {"shape": shape}, "b": {}, "c": {}, "d": {}})
    result = simulate(plan, tables(curve), tmp_path / "run")
    assert result["curves"]["variables"] == bent
    assert bool(result["verdict"]["contradicted"]) == (shape == "linear"), "a curve that was not looked for is told"


def test_where_lines_are_straight_nothing_changes(tmp_path: Path) -> None:
    data = tables(lambda a: 2.0 * a)
    with_hinges, without = (
        simulate(PLAN.with_settings(look_for_curves=look), data, tmp_path / str(look)) for look in (True, False)
    )
    assert with_hinges["curves"] == {
        "rows": sum(len(one.X) for one in data.values()),
        "variables": [],
        "effects": [],
        "total": [],
    }
    assert with_hinges["edges"] == without["edges"]
    assert with_hinges["fit"] == without["fit"]


@pytest.mark.parametrize("gaps", [0.02, 0.12])
def test_gaps_leave_rows_enough(gaps: float, tmp_path: Path) -> None:
    result = simulate(PLAN, tables(np.square, gaps=gaps), tmp_path / "run")
    assert result["curves"]["variables"] == ["a"]
    assert result["curves"]["rows"] == result["gaps"]["complete_rows"]


def test_where_few_values_are_missing_lines_through_curves_are_those_of_all_rows(tmp_path: Path) -> None:
    data = tables(np.square, gaps=0.04)

    result = simulate(PLAN, data, tmp_path / "run")

    assert result["curves"]["variables"]
    assert any("weights of all rows" in words for words in result["verdict"]["assumed"])
    lines = simulate(PLAN.with_settings(look_for_curves=False), data, tmp_path / "lines")
    told = [{(one["source"], one["target"]): one["weight"] for one in of["edges"]} for of in (result, lines)]
    assert told[0]["d", "c"] == pytest.approx(told[1]["d", "c"], rel=1e-3)  # of complete rows it is 2 % away


def test_where_rows_with_gaps_are_unlike_the_others_no_curves_are_looked_for(tmp_path: Path) -> None:
    """Rows that lack d have large values of c: among the others, both causes of c are linked."""
    data = tables(np.square)
    for site, one in data.items():
        X = np.array(one.X)
        X[X[:, 2] > np.quantile(X[:, 2], 0.85), 3] = np.nan
        data[site] = Dataset(NAMES, X)

    result = simulate(PLAN, data, tmp_path / "run")

    assert result["curves"] is None
    assert any("rows with a missing value differ from the others" in words for words in result["verdict"]["not_tested"])


def test_a_curve_that_no_line_shows_contradicts_a_result_of_lines(tmp_path: Path) -> None:
    result = simulate(PLAN, tables(np.square, n=350, gaps=0.2), tmp_path / "run")
    assert result["curves"] is None
    (said,) = (text for text in result["verdict"]["not_tested"] if "a graph with curved effects" in text)
    assert "too few rows have no missing value" in said
    assert ("a", "b") not in {(one["source"], one["target"]) for one in result["edges"]}, "no line tells it"
    (said,) = (text for text in result["verdict"]["contradicted"] if "straight lines" in text)
    assert "how b depends on a (a curve explains" in said
    assert "no edge)" in said
    assert any("straight lines" in text for text in result["verdict"]["tested"])
    assert "effects that are not linear" not in result["verdict"]["not_testable"]


def test_straight_lines_are_tested_and_nothing_contradicts_them(tmp_path: Path) -> None:
    verdict = run(tables(lambda a: 2.0 * a), tmp_path / "run")
    assert verdict["contradicted"] == []
    assert not any("other pair" in text for text in verdict["not_tested"])
    assert any("straight lines" in text for text in verdict["tested"])


def test_without_the_round_effects_that_are_not_linear_are_not_testable(tmp_path: Path) -> None:
    verdict = run(tables(np.square), tmp_path / "run", PLAN.with_settings(look_for_curves=False))
    assert "effects that are not linear" in verdict["not_testable"]
    assert not any("straight lines" in text for text in (*verdict["tested"], *verdict["contradicted"]))


def test_a_robust_consensus_does_not_look_and_says_so(tmp_path: Path) -> None:
    verdict = run(tables(np.square), tmp_path / "run", PLAN.with_settings(consensus="median"))
    assert any("straight lines" in text and "robust rule" in text for text in verdict["not_tested"])
    assert "effects that are not linear" in verdict["not_testable"]


def test_pairs_are_those_of_numbers_that_are_not_below_the_child() -> None:
    plan = Plan().with_settings(
        dictionary={"a": {}, "g": {"kind": "nominal", "levels": ["p", "q", "r"]}, "c": {}, "d": {}}
    )
    columns = plan.columns(("a", "g=q", "g=r", "c", "d"))
    dag = np.zeros((5, 5), dtype=bool)
    dag[0, 1] = dag[0, 2] = dag[1, 3] = dag[2, 3] = True  # a -> g -> c, and d
    pairs = pairs_of(dag, columns, plan.numbers(columns)).tolist()
    assert sorted(map(tuple, pairs)) == [(0, 3), (0, 4), (3, 4), (4, 0), (4, 3)], "not c for its ancestor a"


def test_among_many_variables_only_near_pairs_are_asked_for() -> None:
    names = [f"v{k}" for k in range(80)]
    columns, dag = Plan().columns(names), np.eye(80, k=1, dtype=bool)
    assert MOST_PAIRS < 80 * 79 / 2
    every = np.ones(80, dtype=bool)
    assert {c - a for a, c in pairs_of(dag, columns, every).tolist()} == {1, 2}
    hub = np.zeros((80, 80), dtype=bool)
    hub[0, 1:] = True  # all are within two edges
    assert len(pairs_of(hub, columns, every)) == MOST_PAIRS < n_possible(hub, columns, every) == 79 * 79


@pytest.mark.parametrize("d", [3, 40, 60, 300])
def test_an_answer_fits_into_the_largest_update(d: int) -> None:
    for plan in (
        Plan.load("standard"),
        Plan.load("standard").with_settings(value_type="float64", regressions_rounds=0),
    ):
        k = min(d * (d - 1), MOST_PAIRS)
        update = LocalUpdate("a site", 14, Answer(np.full((k, NUMBERS_A_PAIR), 1 / 3)))
        wire = codec.encode_update(update, run=1, value_type=plan.value_type, dense=False)
        assert wire.ByteSize() <= codec.largest_update_bytes(d, plan.further_bytes)


def chain() -> Task:
    dag = np.eye(4, k=1)
    return Task(SparseMatrix.on_support(dag, dag != 0), np.empty(0, dtype=np.int64))


def answer(sums: Matrix) -> str:
    settings = Run(PLAN, PLAN.edge_mask(NAMES), dict.fromkeys("xyz", 600))
    return curvature.fault(Answer(sums), chain(), settings)


def test_impossible_sums_of_a_site_are_refused() -> None:
    good = np.zeros((6, NUMBERS_A_PAIR))
    good[:, 0], good[:, [4, 7, 9]] = 600.0, 3.0
    assert answer(good) == ""
    for column, value in ((0, -1.0), (0, 1e12), (1, 50.0), (4, -1.0), (5, 3.1), (6, 1e300)):
        bad = good.copy()
        bad[2, column] = value
        assert "no records have" in answer(bad), (column, value)
    assert "6 were asked for" in answer(good[:5])


def test_a_site_refuses_a_graph_with_a_cycle() -> None:
    dag = np.zeros((4, 4))
    dag[0, 1] = dag[1, 2] = dag[2, 0] = 1.0
    asked = replace(chain(), graph=SparseMatrix.on_support(dag, dag != 0))
    site = Participant("x", tables(np.square)["x"], PLAN)
    with pytest.raises(RemoteProtocolError, match="graph with a cycle"):
        site.handle(RoundTask(ROUND, asked, contributed=True))
    site.handle(RoundTask(ROUND, chain(), contributed=True))


def test_hinges_of_levels_are_refused() -> None:
    plan = PLAN.with_settings(dictionary={"a": {}, "b": {}, "c": {}, "d": {"kind": "binary", "levels": ["0", "1"]}})
    X = tables(np.square)["x"].X
    X[:, 3] = X[:, 3] > 5.0
    site = Participant("x", Dataset(NAMES, X), plan)
    with pytest.raises(RemoteProtocolError, match="hinges of columns that hold levels"):
        site.handle(RoundTask(15, hinges_rounds.Task(np.array([0, 3])), contributed=False))


@pytest.mark.parametrize(("rows", "least_cell", "sent"), [(300, 0, 300), (300, 5, 300), (300, 150, 0), (19, 0, 0)])
def test_a_site_keeps_hinges_of_few_rows_to_itself(rows: int, least_cell: int, sent: int) -> None:
    X = tables(np.square)["x"].X[:rows]
    site = Participant("x", Dataset(NAMES, X), PLAN, least_cell=least_cell)
    units = Units(np.empty(0), X.std(axis=0), np.empty(0))
    told = site.handle(RoundTask(15, hinges_rounds.Task(np.array([0, 1])), contributed=False, units=units)).content
    assert isinstance(told, hinges_rounds.Answer)
    assert told.n_rows == sent
    assert bool(told.moments.any()) == bool(sent)


@pytest.mark.parametrize("fifth", [{}, {"kind": "binary", "levels": ["u", "v"]}])
@pytest.mark.parametrize(("gap", "sent"), [(False, 300), (True, 0)])
def test_a_site_that_keeps_small_counts_sends_no_hinges_of_some_of_its_rows(
    gap: bool, sent: int, fifth: dict[str, Any]
) -> None:
    """What sums over rows that have two variables exceed those over complete rows by is of rows with a gap alone."""
    described = Dictionary.model_validate({**{name: {} for name in NAMES}, "e": fifth})
    X = np.column_stack([tables(np.square)["x"].X[:300], np.arange(300) % 2])
    X[0, 2] = np.nan if gap else X[0, 2]
    plan = PLAN.with_dictionary(described, origin="here")
    table = Dataset.of_values(described.variables, X, origin="here", dictionary=described, warn=False)
    units = Units(np.empty(0), np.nanstd(X, axis=0), np.empty(0))
    asked = RoundTask(15, hinges_rounds.Task(np.array([0, 1])), contributed=False, units=units)
    told = Participant("x", table, plan, least_cell=5).handle(asked).content
    assert isinstance(told, hinges_rounds.Answer)
    assert told.n_rows == sent


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda answer: replace(answer, moments=answer.moments[1:]), "were asked for"),
        (lambda answer: replace(answer, n_rows=601), "more rows"),
        (lambda answer: replace(answer, moments=answer.moments * np.where(np.arange(45) == 1, 9.0, 1.0)), "cannot be"),
        (lambda answer: replace(answer, moments=-answer.moments), "cannot be"),
        (lambda answer: replace(answer, moments=np.where(answer.moments == 0.5, -0.9, answer.moments)), "cannot be"),
    ],
)
def test_moments_of_hinges_that_no_rows_have_are_refused(change: Any, words: str) -> None:
    columns = PLAN.columns(NAMES)
    task, S = hinges_rounds.Task(np.array([0])), np.eye(9) + 0.5
    context = Run(PLAN, PLAN.edge_mask(columns.names), dict.fromkeys("xyz", 600))
    answer = hinges_rounds.Answer(600, S[np.triu_indices(9)])
    assert hinges.fault(answer, task, context) == ""
    assert words in hinges.fault(change(answer), task, context)


def test_straight_effects_beside_a_u_are_not_called_bent(tmp_path: Path) -> None:
    """Of e -> a -> b and a -> c -> d, a -> b is a U, and other numbers get hinges beside it."""
    rng, data = np.random.default_rng(7), dict[str, Dataset]()
    for site in ("w", "x", "y", "z"):
        e, of_a, of_b, of_c, of_d = rng.standard_normal((5, 1000))
        a = 0.6 * e + of_a
        c = 0.7 * a + 0.3 * e + of_c
        X = np.column_stack([e, a, 0.5 * np.square(a) + of_b, c, 0.6 * c + of_d])
        data[site] = Dataset(("e", "a", "b", "c", "d"), X)
    result = simulate(PLAN.with_settings(n_participants=4), data, tmp_path / "run")
    told = {(one["source"], one["target"]): one["p_straight"] for one in result["curves"]["effects"]}
    assert told["a", "b"] < 1e-9
    assert all(p > 1e-3 for pair, p in told.items() if pair != ("a", "b"))
    assert [(one["source"], one["target"]) for one in clearly_bent(result["curves"])] == [("a", "b")]
    assert result["verdict"]["assumed"][0].startswith("effects of 'a' bend")


def test_where_no_effect_is_clearly_bent_all_are_named() -> None:
    effects = [{"source": source, "target": "t", "p_straight": 0.02} for source in "ab"]
    assert clearly_bent({"effects": effects}) == effects
    effects[0]["p_straight"] = 0.004
    assert clearly_bent({"effects": effects}) == effects[:1]
    assert clearly_bent({"effects": [*effects, {"source": "c", "target": "t"}]})[-1]["source"] == "c", "not known"
