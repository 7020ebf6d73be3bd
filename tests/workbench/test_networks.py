"""A run's network in use: synthetic tables, and questions about values, against closed forms and the tables."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedbnsl.cli import fedbnsl as root
from fedbnsl.errors import FedbnslError, ResultError, SetupError
from fedbnsl.network import NETWORK
from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Levels, Number
from fedbnsl.network.fitted_network import read_fitted_network
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.inference.interventions import Family as TableOfCounts
from fedbnsl_server.results.network_of_run import _Fitting, _promise, fitted_network
from fedbnsl_server.store.result_file import read_result
from fedbnsl_workbench.cli import simulate as simulate_command
from fedbnsl_workbench.network import Network
from fedbnsl_workbench.networks.cli import _values
from fedbnsl_workbench.networks.questions import answer
from fedbnsl_workbench.networks.rows import rows_of_table
from fedbnsl_workbench.networks.synthetic import drawn
from fedbnsl_workbench.simulate import simulate

LINES = Plan.load("standard", ["bootstrap=20", "n_participants=2", "look_for_curves=false", "look_at_noise=false"])
MIXED: dict[str, Any] = {
    "age": {"range": [18, 100], "unit": "years", "tier": 1},
    "stage = now": {"kind": "nominal", "levels": ["I", "II", "III"]},
    "märker": {"transform": "log", "range": [0.01, 1000]},
    "visits": {"kind": "count", "range": [0, 60]},
    "grade": {"kind": "ordinal", "levels": ["low", "middle", "high"]},
    "dead": {"kind": "binary", "levels": ["no", "yes"]},
}
BEND = {"parent": 1, "at": [0.0, 1.0], "adds": [0.0, 1.0]}
TABLE = {"family": "table", "columns": [6], "n_levels": 2, "of_parents": []}


def straight_tables() -> dict[str, Dataset]:
    """x -> y -> z, whose means differ between sites."""
    rng, found = np.random.default_rng(1), dict[str, Dataset]()
    for k in range(2):
        x = rng.normal(50.0 + k, 2.0, 2000)
        y = 0.5 * x + rng.normal(0.0, 1.0, 2000)
        found[f"site-{k}"] = Dataset(("x", "y", "z"), np.column_stack([x, y, 3.0 - y + rng.normal(0.0, 0.5, 2000)]))
    return found


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("networks") / "straight"
    simulate(LINES, straight_tables(), run)
    return run


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    rng = np.random.default_rng(2)
    for k in range(2):
        n = 3000
        age = np.clip(rng.normal(60, 12, n), 18, 100)
        stage = np.clip(np.floor(rng.normal(0.8, 0.8, n) + 0.03 * (age - 60)), 0, 2).astype(int)
        marker = np.exp(1.0 + 0.6 * stage + rng.normal(0, 0.5, n))
        visits = rng.poisson(np.exp(0.5 + 0.3 * stage))
        grade = np.clip(np.rint(1.0 + 0.5 * (np.log(marker) - 1.5) + rng.normal(0, 0.6, n)), 0, 2).astype(int)
        dead = rng.random(n) < 1.0 / (1.0 + np.exp(2.5 - 1.0 * stage))
        columns = [
            age.round(1), np.array(["I", "II", "III"])[stage], marker.round(3), visits,
            np.array(["low", "middle", "high"])[grade], np.where(dead, "yes", "no"),
        ]  # fmt: skip
        with open(folder / f"site-{k + 1}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(MIXED)
            writer.writerows(zip(*columns, strict=True))
    words = {
        name: "\n".join(f"{key} = {json.dumps(value)}" for key, value in entry.items()) for name, entry in MIXED.items()
    }
    text = "\n".join(f"[{json.dumps(name, ensure_ascii=False)}]\n{entry}" for name, entry in words.items())
    (folder / "dictionary.toml").write_text(text, encoding="utf-8")
    arguments = ["standard", "--data", str(folder), "--out", str(folder / "run"), "--set", "bootstrap=20"]
    result = CliRunner().invoke(simulate_command, arguments)
    assert result.exit_code == 0, result.output
    return folder / "run"


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        first = file.readline()
        if not first.startswith("#"):
            file.seek(0)
        return list(csv.DictReader(file))


def told(*arguments: str | Path | int) -> dict[str, Any]:
    result = CliRunner().invoke(root, ["network", *map(str, arguments), "--json"])
    if result.exception is not None:
        raise result.exception
    return dict(json.loads(result.stdout))


def test_a_network_of_lines_answers_by_formulas_what_its_draws_say(straight: Path) -> None:
    fitted = fitted_network(straight)
    exact = answer(fitted, "x", {"z": "-20"}, {})
    assert exact["exact"]
    X, weights = fitted.network.draws(400_000, np.random.default_rng(1), {"z": [-20.0]})
    assert weights @ X[:, 0] == pytest.approx(exact["mean"], abs=0.05)
    rows = np.vstack([one.X for one in straight_tables().values()])
    within = np.vstack([one.X - one.X.mean(axis=0) for one in straight_tables().values()])
    slope = within[:, 0] @ within[:, 2] / (within[:, 2] @ within[:, 2])
    assert exact["mean"] == pytest.approx(rows[:, 0].mean() + slope * (-20.0 - rows[:, 2].mean()), abs=0.15)
    assert answer(fitted, "x", {}, {})["mean"] == pytest.approx(rows[:, 0].mean(), rel=1e-9)


def test_intervals_hold_95_percent_of_new_rows(straight: Path) -> None:
    fitted = fitted_network(straight)
    rng = np.random.default_rng(7)
    x = rng.normal(50.5, 2.0, 4000)
    new = 0.5 * x + rng.normal(0.0, 1.0, 4000)
    inside = []
    for value, y in zip(x[:300], new[:300], strict=True):
        low, high = answer(fitted, "y", {"x": str(value)}, {})["interval"]
        inside.append(low <= y <= high)
    assert 0.92 <= np.mean(inside) <= 0.98


def test_a_synthetic_table_has_the_kinds_levels_and_ranges_of_the_dictionary(mixed: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    answered = told("sample", mixed, "--rows", "4000", "--out", out)
    rows = rows_of(out)
    assert list(rows[0]) == list(MIXED)
    assert len(rows) == answered["rows"] == 4000
    for name, entry in MIXED.items():
        values = [row[name] for row in rows]
        if "levels" in entry:
            assert set(values) <= set(entry["levels"])
        else:
            low, high = entry["range"]
            assert all(low <= float(value) <= high for value in values)
    assert all(row["visits"].isdigit() for row in rows)
    real = rows_of(mixed.parent / "site-1.csv") + rows_of(mixed.parent / "site-2.csv")
    for name in ("stage = now", "dead"):
        for level in MIXED[name]["levels"]:
            share, drawn_share = (np.mean([row[name] == level for row in one]) for one in (real, rows))
            assert drawn_share == pytest.approx(share, abs=0.04), (name, level)
    for level in MIXED["stage = now"]["levels"]:
        of_real, of_drawn = (
            np.mean([row["dead"] == "yes" for row in one if row["stage = now"] == level]) for one in (real, rows)
        )
        assert of_drawn == pytest.approx(of_real, abs=0.08), level
    ages, drawn_ages = (np.mean([float(row["age"]) for row in one]) for one in (real, rows))
    assert drawn_ages == pytest.approx(ages, abs=1.0)


def test_a_seed_gives_the_same_bytes_and_another_one_others(mixed: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        told("sample", mixed, "--rows", "50", "--seed", seed, "--plain", "--out", tmp_path / name)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again
    assert first != other
    assert first.startswith(b"age,")


def test_more_rows_begin_with_the_same_blocks(straight: Path) -> None:
    fitted = fitted_network(straight)
    blocks = list(drawn(fitted, 100_010, 1))
    assert [len(one) for one in blocks] == [100_000, 10]
    np.testing.assert_array_equal(blocks[0], next(drawn(fitted, 100_000, 1)))


def test_probabilities_of_levels_follow_what_is_known(mixed: Path) -> None:
    low, high = (told("ask", mixed, "--target", "dead", "--given", f"stage = now={k}") for k in ("I", "III"))
    assert low["probabilities"]["yes"] < high["probabilities"]["yes"] - 0.2
    assert sum(low["probabilities"].values()) == pytest.approx(1.0)
    marker = told("ask", mixed, "--target", "märker", "--given", "stage = now=III")
    # exp(2.2) times the mean of a lognormal value with spread .5
    assert marker["mean"] == pytest.approx(np.exp(2.2 + 0.125), rel=0.15)
    assert 0.0 < marker["interval"][0] < marker["mean"] < marker["interval"][1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "foo"], "'foo' is not a variable of the network"),
        (["--target", "dead", "--given", "foo=1"], "'foo' is not a variable"),
        (["--target", "dead", "--given", "grade=huge"], "'huge' is no level of 'grade', which has 'low', 'middle'"),
        (["--target", "dead", "--given", "age=130"], "age = 130: the data dictionary has values from 18 to 100"),
        (["--target", "dead", "--given", "age=old"], "age = 'old': expected a number in years"),
        (["--target", "dead", "--given", "age"], "expected NAME=VALUE"),
        (["--target", "dead", "--given", "age=50", "--given", "age=51"], "'age' has two values"),
        (["--target", "dead", "--given", "dead=yes"], "'dead' is asked for, and its value is given"),
        (["--target", "dead", "--given", "age=50", "--do", "age=51"], "'age' is both known and set"),
        (["--target", "dead", "--do", "stage = now=II"], "rests on there being no hidden common cause"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(mixed: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        told("ask", mixed, *arguments)


def test_an_intervention_is_answered_under_the_assumption_alone_and_where_the_class_tells_it(straight: Path) -> None:
    """Lines of a chain have no direction: then nothing tells what setting one does."""
    with pytest.raises(SetupError, match="the effect of 'x' on 'y': not identified"):
        told("ask", straight, "--target", "y", "--do", "x=52", "--no-hidden-causes")


def test_an_intervention_moves_what_is_below_and_nothing_above(mixed: Path) -> None:
    """Nothing acts on age, so that marks and class direct its edges."""
    options = ("--no-hidden-causes", "--target")
    below = told("ask", mixed, "--do", "age=80", *options, "stage = now")
    assert below["probabilities"]["III"] > told("ask", mixed, "--target", "stage = now")["probabilities"]["III"] + 0.1


def test_a_value_far_from_all_rows_is_said_to_be(straight: Path) -> None:
    (note,) = told("ask", straight, "--target", "y", "--given", "x=90")["notes"]
    assert note.startswith("x = 90 lies ")
    assert told("ask", straight, "--target", "y", "--given", "x=52")["notes"] == []


def test_a_table_that_is_there_is_not_overwritten(mixed: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    out.write_text("mine")
    with pytest.raises(SetupError, match="is not overwritten"):
        told("sample", mixed, "--out", out)
    assert out.read_text() == "mine"


def test_a_run_that_tells_no_means_draws_no_rows(tmp_path: Path) -> None:
    simulate(LINES.with_settings(tell_means=False), straight_tables(), tmp_path / "run")
    with pytest.raises(SetupError, match="does not tell the means") as error:
        fitted_network(tmp_path / "run")
    assert "tell_means=true" in error.value.remedy


def test_rows_of_a_private_run_say_what_it_promises(tmp_path: Path) -> None:
    ranges = {"x": {"range": [30, 70]}, "y": {"range": [10, 40]}, "z": {"range": [-40, 0]}}
    plan = Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=50.0)
    run = tmp_path / "run"
    simulate(plan.with_settings(dictionary=ranges, n_participants=2), straight_tables(), run, noise_seed=1)
    fitted = fitted_network(run)
    assert fitted.privacy.startswith("no privacy is promised: a simulation keeps no ledger")
    X = next(drawn(fitted, 2000, 1))
    assert np.isfinite(X).all()
    (said,) = told("ask", run, "--target", "x")["doubts"][-1:]
    assert said == "the noise of privacy is in all numbers, and no interval here counts it"
    assert "the noise of privacy is in these numbers" in CliRunner().invoke(root, ["network", "show", str(run)]).stdout


def test_a_promise_is_told_with_what_drawing_costs_in_one_line() -> None:
    promise = {"guarantee": "Epsilon 5\r\nfor each record."}
    assert _promise(promise) == "Epsilon 5 for each record; drawing rows costs nothing more"
    assert _promise(None) == "no privacy is promised: the run had no private plan"


def test_programs_get_the_rows_that_the_command_writes(mixed: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    frame = Network.load(mixed).sample(40, seed=3)
    told("sample", mixed, "--rows", "40", "--seed", "3", "--out", tmp_path / "rows.csv")
    assert frame.astype(str).to_dict("records") == rows_of(tmp_path / "rows.csv")
    assert frame.attrs["privacy"].startswith("no privacy is promised")
    asked = Network.load(mixed).ask("dead", given={"age": 60, "grade": "low"})
    assert asked == answer(fitted_network(mixed), "dead", {"age": "60", "grade": "low"}, {})


def test_what_is_known_below_an_intervention_must_be_told_by_the_class_too(tmp_path: Path) -> None:
    """x -- a -> t <- c -> g <- x: what a does to t is known, and not what it does to g, by which c follows from g."""
    rng, told_by = np.random.default_rng(2), dict[str, Dataset]()
    for site in ("north", "south"):
        a, c = rng.normal(size=(2, 3000))
        x = 0.8 * a + rng.normal(size=3000)
        noise = rng.normal(size=(2, 3000))
        told_by[site] = Dataset(
            ("a", "c", "g", "t", "x"), np.column_stack([a, c, x + c + noise[0], a + c + noise[1], x])
        )
    simulate(LINES, told_by, tmp_path / "run")
    fitted = fitted_network(tmp_path / "run")
    assert answer(fitted, "t", {}, {"a": "2"}, none_hidden=True)["mean"] == pytest.approx(2.0, abs=0.1)
    assert answer(fitted, "t", {"c": "1"}, {"a": "2"}, none_hidden=True)["mean"] == pytest.approx(3.0, abs=0.1)
    with pytest.raises(SetupError, match="the effect of 'a' on 'g': not identified"):
        answer(fitted, "t", {"g": "1"}, {"a": "2"}, none_hidden=True)


def test_names_and_values_may_hold_equals_signs() -> None:
    names = ["dose", "dose=now", "märker"]
    assert _values(("dose==2", "dose=now=a=b"), "--given", names) == {"dose": "=2", "dose=now": "a=b"}
    assert _values(("foo=a=b",), "--given", names) == {"foo=a": "b"}


def test_values_are_rounded_alike_in_a_block_of_any_size(mixed: Path, straight: Path) -> None:
    for run in (mixed, straight):
        fitted = fitted_network(run)
        X = next(drawn(fitted, 50, 1))
        for name in fitted.variables:
            assert fitted.cells(name, X[:1]) == fitted.cells(name, X)[:1], name


def test_small_values_of_a_logarithm_keep_their_digits(mixed: Path) -> None:
    fitted = fitted_network(mixed)
    X = np.repeat(fitted.means[None, :], 2, axis=0)
    X[:, fitted.members("märker")[0]] = np.log([0.012345, 123.45])
    assert fitted.cells("märker", X) == [0.01234, 123.5] or fitted.cells("märker", X) == [0.01235, 123.5]


def test_means_of_values_within_a_range_and_of_ordered_levels_are_those_that_the_sites_told(mixed: Path) -> None:
    """Ranges cut off more on one side than on the other."""
    fitted = fitted_network(mixed)
    X = np.vstack(list(drawn(fitted, 400_000, 1)))
    for name in ("visits", "grade", "age"):
        (k,) = fitted.members(name)
        assert X[:, k].mean() == pytest.approx(fitted.means[k], abs=0.01 * X[:, k].std()), name


def damaged(run: Path, out: Path, file: str, change: Callable[[Any], object]) -> Path:
    shutil.copytree(run, out)
    content = json.loads((out / file).read_text(encoding="utf-8"))
    change(content)
    (out / file).write_text(json.dumps(content), encoding="utf-8")
    return out


def with_a_cycle(content: Any) -> None:
    content["cpds"]["age"] = {"parents": ["dead"], "coefficients": {"dead": [1.0]}, "variance": [1.0]}


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("lgbn.json", with_a_cycle, "a graph with a cycle"),
        ("lgbn.json", lambda told: told.update(cpds=[]), "run's columns: its parts are not those that a run writes"),
        ("lgbn.json", lambda told: told.pop("cpds"), "run's columns: it lacks 'cpds', or names it where"),
        ("result.json", lambda told: told["preparation"]["means"].pop("age"), "tells no mean of 'age'"),
        ("result.json", lambda told: told.update(preparation=None), "is not the plan of the result"),
        ("result.json", lambda told: told["levels"].pop("dead"), "is not the plan of the result"),
    ],
)
def test_a_damaged_run_is_an_error_that_says_what(
    mixed: Path, tmp_path: Path, file: str, change: Callable[[Any], object], words: str
) -> None:
    with pytest.raises(ResultError, match=words):
        fitted_network(damaged(mixed, tmp_path / "run", file, change))


def test_a_plan_of_another_run_is_not_taken(mixed: Path, straight: Path, tmp_path: Path) -> None:
    for run, other in ((mixed, straight), (straight, mixed)):
        copy = tmp_path / run.name
        shutil.copytree(run, copy)
        shutil.copy(other / "plan.toml", copy)
        with pytest.raises(ResultError, match="is not the plan of the result"):
            fitted_network(copy)


def test_deviations_within_groups_are_no_rows_of_a_table(tmp_path: Path) -> None:
    shape = Dictionary.model_validate({"p": {"kind": "group", "within": "within"}, "x": {}, "y": {}, "z": {}})
    simulate(LINES.with_settings(dictionary=shape.model_dump()), straight_tables(), tmp_path / "run")
    with pytest.raises(SetupError, match="deviations from the means of their groups"):
        fitted_network(tmp_path / "run")


def test_of_many_columns_few_rows_are_drawn_at_a_time(straight: Path) -> None:
    fitted = fitted_network(straight)
    none = np.array([], dtype=np.int64)
    families = {f"v{k}": Number(k, none, np.array([]), 0.0, 1.0) for k in range(1000)}
    object.__setattr__(fitted, "network", BayesianNetwork(1000, families))
    assert [len(one) for one in drawn(fitted, 5000, 1)] == [2000, 2000, 1000]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_told_of_drawn_rows_is_what_the_table_has(straight: Path, tmp_path: Path, seed: int) -> None:
    answered = told("sample", straight, "--rows", "3000", "--seed", seed, "--out", tmp_path / "rows.csv")
    rows = np.array([[float(row[name]) for name in "xyz"] for row in rows_of(tmp_path / "rows.csv")])
    for k, name in enumerate("xyz"):
        of = answered["columns"][name]
        assert (of["drawn_mean"], of["drawn_spread"]) == pytest.approx((rows[:, k].mean(), rows[:, k].std()), rel=1e-3)
        assert of["drawn_mean"] != of["mean"]
    S = fitted_network(straight).learned.covariance
    of_network = S / np.sqrt(np.outer(S.diagonal(), S.diagonal()))
    gap = np.abs(np.corrcoef(rows.T) - of_network)
    i, j = divmod(int(gap.argmax()), 3)
    pair = answered["correlations"][0]
    assert {pair["one"], pair["other"]} == {"xyz"[i], "xyz"[j]}
    assert pair["of_network"] == pytest.approx(of_network[i, j])
    assert pair["drawn"] == pytest.approx(np.corrcoef(rows.T)[i, j], abs=1e-3)


def fitting(run: Path, W: np.ndarray, result: dict[str, Any], means: list[float], **learned: Any) -> _Fitting:
    """Of a run over x, y and z."""
    fitted, plan = fitted_network(run), Plan.load(run / "plan.toml")
    if described := learned.pop("dictionary", None):
        plan = plan.with_settings(dictionary=described)
    return _Fitting(
        {**read_result(run), **result}, replace(fitted.learned, **learned), plan, W, np.ones(3), np.array(means)
    )


def test_a_curve_counts_from_the_mean_of_its_source_and_leaves_the_rest_of_the_variance(straight: Path) -> None:
    W, bent = np.zeros((3, 3)), {"source": "x", "target": "y", "at": [-3.0, 0.0, 3.0], "change": [3.0, 0.0, 3.0]}
    W[0, 1] = 0.1
    of = fitting(straight, W, {"curves": {"effects": [bent]}}, [50.0, 20.0, 0.0], covariance=np.diag([1.0, 1.0, 1.0]))
    X = of.network().sample(200_000, np.random.default_rng(1))
    assert X.mean(axis=0) == pytest.approx([50.0, 20.0, 0.0], abs=0.02)
    assert X[:, 1].std() == pytest.approx(1.0, abs=0.02)
    slope = np.polyfit(np.abs(X[:, 0] - 50.0), X[:, 1], 1)[0]
    assert slope == pytest.approx(1.0, abs=0.05)


def test_tables_are_drawn_along_their_own_graph_and_unseen_combinations_as_all_others(straight: Path) -> None:
    W, two = np.zeros((3, 3)), {"kind": "binary", "levels": ["no", "yes"]}
    W[0, 1] = 0.5
    tables = {
        "y": TableOfCounts((), np.array([50.0, 50.0])),
        "x": TableOfCounts(("y",), np.array([[40.0, 10.0], [5.0, 45.0]])),
        "z": TableOfCounts(("y",), np.array([[36.0, 4.0], [0.0, 0.0]])),
    }
    described = {"x": two, "y": two, "z": two}
    levels = {name: ["no", "yes"] for name in described}
    of = fitting(straight, W, {}, [0.55, 0.5, 0.1], tables=tables, table_levels=levels, dictionary=described)
    X = of.network().sample(100_000, np.random.default_rng(1))
    assert X.mean(axis=0) == pytest.approx([0.55, 0.5, 0.1], abs=0.01)
    assert X[X[:, 1] == 1.0].mean(axis=0) == pytest.approx([0.9, 1.0, 0.1], abs=0.01)


def test_odds_ratios_of_the_result_are_those_of_the_network(mixed: Path) -> None:
    fitted = fitted_network(mixed)
    (of_result,) = (one for one in read_result(mixed)["regressions"] if one["child"] == "dead")
    family = fitted.network.families["dead"]
    assert isinstance(family, Levels)
    assert family.by_odds
    assert family.weights[:, 0].tolist() == [one["log_ratio"] for one in of_result["estimates"]]


def test_shares_that_noise_has_made_impossible_become_the_nearest_possible_ones(mixed: Path, tmp_path: Path) -> None:
    def change(told: Any) -> None:
        told["preparation"]["means"] |= {"stage = now=II": 0.8, "stage = now=III": 0.7, "dead": -0.1}

    X = fitted_network(damaged(mixed, tmp_path / "run", "result.json", change)).network.sample(
        20_000, np.random.default_rng(1)
    )
    assert X[:, 1:3].mean(axis=0) == pytest.approx([0.8 / 1.5, 0.7 / 1.5], abs=0.02)
    assert X[:, 6].mean() < 0.005


def test_variables_that_nothing_is_known_of_are_left_out_with_the_reason(straight: Path) -> None:
    of = fitting(straight, np.zeros((3, 3)), {}, [1.0, np.nan, 2.0], untold={"z": "noise hides it"})
    assert list(of.network().families) == ["x"]
    assert of.left_out == {"y": "no site has a value of it", "z": "noise hides it"}


def test_rows_of_a_series_are_not_drawn(straight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = replace(fitted_network(straight).learned, before=("x",))
    monkeypatch.setattr("fedbnsl_server.results.network_of_run.read_network", lambda run: learned)
    with pytest.raises(SetupError, match="those of a series"):
        fitted_network(straight)


def test_counts_are_whole_and_not_below_zero_where_the_dictionary_has_no_range(straight: Path) -> None:
    fitted = fitted_network(straight)
    object.__setattr__(fitted, "dictionary", Dictionary.model_validate({"x": {"kind": "count"}}))
    X = np.zeros((4, 3))
    X[:, 0] = [-0.8, 0.0, np.log1p(3.2), 60.0]
    assert fitted.cells("x", X) == [0, 0, 3, 2**53]


def test_values_that_hardly_any_draw_is_like_tell_nothing(straight: Path) -> None:
    fitted = fitted_network(straight)
    families = {
        name: replace(one, low=-1e6, high=1e6) if isinstance(one, Number) else one
        for name, one in fitted.network.families.items()
    }
    object.__setattr__(fitted, "network", BayesianNetwork(3, families))
    first, _, last = families
    assert not answer(fitted, "x", {"z": "-22"}, {})["exact"]
    with pytest.raises(SetupError, match="draws, only about"):
        answer(fitted, first, {last: "-300"}, {})


def test_a_variable_with_a_transform_is_told_in_its_own_unit(straight: Path) -> None:
    fitted = fitted_network(straight)
    object.__setattr__(fitted, "dictionary", Dictionary.model_validate({"y": {"transform": "sqrt"}}))
    told_of = answer(fitted, "y", {}, {})
    (k,) = fitted.members("y")
    assert told_of["mean"] == pytest.approx(fitted.means[k] ** 2 + fitted.learned.covariance[k, k], rel=0.01)


def test_counts_and_grades_are_drawn_as_often_as_the_tables_have_them(mixed: Path) -> None:
    fitted = fitted_network(mixed)
    X = np.vstack(list(drawn(fitted, 200_000, 1)))
    real = rows_of(mixed.parent / "site-1.csv") + rows_of(mixed.parent / "site-2.csv")
    for name, values in (("visits", range(6)), ("grade", MIXED["grade"]["levels"])):
        cells = fitted.cells(name, X)
        for value in values:
            share = np.mean([row[name] == str(value) for row in real])
            assert np.mean([one == value for one in cells]) == pytest.approx(share, abs=0.03), (name, value)
    for stage in ("I", "III"):
        share = np.mean([row["visits"] == "0" for row in real if row["stage = now"] == stage])
        low, high = answer(fitted, "visits", {"stage = now": stage}, {})["interval"]
        visits = [int(row["visits"]) for row in real if row["stage = now"] == stage]
        assert 0.94 <= np.mean([low <= one <= high for one in visits]) <= 0.995
        none = answer(fitted, "stage = now", {"visits": "0"}, {})["probabilities"][stage]
        of_zeros = np.mean([row["stage = now"] == stage for row in real if row["visits"] == "0"])
        assert none == pytest.approx(of_zeros, abs=0.04)


def test_counts_and_grades_without_ratios_depend_on_their_parents_as_the_tables_have_it(
    mixed: Path, tmp_path: Path
) -> None:
    arguments = ["standard", "--data", str(mixed.parent), "--out", str(tmp_path / "run"), "--set", "bootstrap=0"]
    result = CliRunner().invoke(simulate_command, [*arguments, "--set", "regressions_rounds=0"])
    assert result.exit_code == 0, result.output
    fitted = fitted_network(tmp_path / "run")
    X = np.vstack(list(drawn(fitted, 100_000, 1)))
    rows = rows_of(mixed.parent / "site-1.csv") + rows_of(mixed.parent / "site-2.csv")
    real, _ = rows_of_table(fitted, rows)
    for name in ("grade", "visits"):
        family = fitted.network.families[name]
        (own,), parents = family.columns, family.parents
        slopes = [np.linalg.lstsq(np.c_[np.ones(len(Z)), Z[:, parents]], Z[:, own])[0][1:] for Z in (X, real)]
        assert slopes[0] == pytest.approx(slopes[1], abs=0.03), name


def test_of_more_than_three_grades_shares_are_said_to_be_rough(straight: Path, mixed: Path) -> None:
    assert told("ask", mixed, "--target", "grade")["notes"] == []
    four = Dictionary.model_validate({"x": {"kind": "ordinal", "levels": ["a", "b", "c", "d"]}})
    of = fitting(straight, np.zeros((3, 3)), {}, [1.2, 20.0, 0.0], dictionary=four, covariance=np.diag([0.8, 1.0, 1.0]))
    network = of.network()
    X = network.sample(100_000, np.random.default_rng(1))[:, 0]
    assert (X.mean(), X.var()) == pytest.approx((1.2, 0.8), abs=0.02)
    fitted = replace(fitted_network(straight), network=network)
    assert fitted.rough(["x", "y"]) == [
        "of 'x' the run tells mean and spread: how they share out over its levels is rough"
    ]


def test_a_network_is_the_same_after_it_was_written_and_read(mixed: Path, straight: Path, tmp_path: Path) -> None:
    for run in (mixed, straight):
        fitted = fitted_network(run)
        (tmp_path / NETWORK).write_text(fitted.to_json(), encoding="utf-8")
        again = read_fitted_network(tmp_path)
        assert again.to_json() == fitted.to_json()
        np.testing.assert_array_equal(
            again.network.sample(100, np.random.default_rng(1)), fitted.network.sample(100, np.random.default_rng(1))
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told.update(schema="fedbnsl.network/0"), "expected 'fedbnsl.network/1'"),
        (lambda told: told.pop("families"), "'families' is not there"),
        (lambda told: told["families"]["dead"].update(family="none"), "family of 'dead': no family 'none'"),
        (lambda told: told["families"]["visits"].update(lines=[70], weights=[1.0]), "a column that is not there"),
        (lambda told: told["families"]["visits"].update(lines=[-1], weights=[1.0]), "a column that is not there"),
        (lambda told: told["families"]["visits"].update(weights=[[1.0]]), "'visits': 2 axes"),
        (lambda told: told["families"]["visits"].update(weights=[1.0] * 9), "as many weights as lines"),
        (lambda told: told["families"]["visits"].update(intercept=1e300), "no number, or one beyond 1e\\+30"),
        (lambda told: told["families"]["visits"].update(size=1e9), "above 0 and up to 1e\\+08"),
        (lambda told: told["families"]["visits"].update(lines=[10**30]), "as it was written"),
        (lambda told: told["families"]["age"].update(noise_std=0.0), "above 0"),
        (lambda told: told["families"]["age"].update(noise_std=-1.0), "above 0"),
        (lambda told: told["families"]["age"].update(low=100.0, high=18.0), "a range that ends before it begins"),
        (lambda told: told["families"]["age"].update(bends=[BEND | {"at": [0.0, 0.0]}]), "do not ascend"),
        (lambda told: told["families"]["age"].update(bends=[BEND | {"adds": [0.0]}]), "or not a number for each"),
        (lambda told: told["families"]["age"].update(bends=[BEND]), "'age' has a parent that does not stand before it"),
        (lambda told: told["families"]["grade"].update(cuts=[1.0, 0.0]), "cuts between grades that do not ascend"),
        (lambda told: told["families"].update(dead=TABLE | {"table": [0.5, 0.6]}), "that do not add up to 1"),
        (lambda told: told["families"].update(dead=told["families"]["age"]), "'dead' has columns of another"),
        (lambda told: told["levels"].update(dead=["no"]), "levels of 'dead'"),
        (lambda told: told["dictionary"]["dead"].update(kind="yes or no"), "dictionary.dead.kind: Input should be"),
        (lambda told: told["columns"][0].pop("mean"), "'mean' is not there"),
        (lambda told: told["columns"][0].update(mean=None), "mean or spread of 'age'"),
    ],
)
def test_a_damaged_file_of_a_network_is_refused_with_what_is_wrong(
    mixed: Path, tmp_path: Path, change: Callable[[Any], object], words: str
) -> None:
    content = json.loads(fitted_network(mixed).to_json())
    change(content)
    (tmp_path / NETWORK).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ResultError, match=words):
        read_fitted_network(tmp_path)


def test_a_column_that_is_drawn_with_one_value_alone_has_no_correlation(mixed: Path, tmp_path: Path) -> None:
    for n in (1, 2, 3):
        pairs = told("sample", mixed, "--rows", str(n), "--out", tmp_path / f"{n}.csv")["correlations"]
        assert all(abs(pair["drawn"]) <= 1.0 + 1e-9 for pair in pairs)
        assert n > 1 or not pairs


def test_programs_are_told_what_is_no_number_of_rows(mixed: Path) -> None:
    for rows, seed in ((0, 1), (5, -1)):
        with pytest.raises(SetupError, match="expected at least one row"):
            Network.load(mixed).sample(rows, seed=seed)


def test_an_unreadable_run_is_an_error_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(FedbnslError):
        fitted_network(tmp_path)
