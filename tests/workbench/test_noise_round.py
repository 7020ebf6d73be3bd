"""Runs that ask for the shape of noise where moments leave directions open."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.results.noise import noise_tests
from fedbnsl_server.results.sentences import in_words
from fedbnsl_server.store.result_file import read_result
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.simulate import simulate

NAMES = ("a", "b", "c", "d", "e")
PLAN = Plan.load("standard").with_settings(bootstrap=20, n_participants=3)


def tables(n: int = 700, *, normal: bool = False, **changes: Any) -> dict[str, Dataset]:
    """A chain d -> c -> b -> a, against the order of the names, and e by itself; `changes` of rows, by column."""
    rng, found = np.random.default_rng(12), dict[str, Dataset]()
    for site in ("x", "y", "z"):
        noise = rng.standard_normal((n, 5)) if normal else rng.laplace(size=(n, 5))
        d, e = noise[:, 3], noise[:, 4]
        c = 0.8 * d + noise[:, 2]
        b = c + noise[:, 1]
        X = np.column_stack([-0.7 * b + noise[:, 0], b, c, d, e]) * [1.0, 50.0, 0.1, 1.0, 3.0] + 7.0
        for name, change in changes.items():
            X[:, NAMES.index(name)] = change(X, rng)
        found[site] = Dataset(NAMES, X)
    return found


def arrows(result: dict[str, Any]) -> set[str]:
    return {edge["source"] + edge["target"] for edge in result["edges"] if edge["directed"]}


def directed_by(result: dict[str, Any]) -> set[str]:
    return {edge["directed_by"] for edge in result["edges"]}


def test_noise_directs_a_chain_and_all_numbers_are_those_of_its_directions(tmp_path: Path) -> None:
    data = tables()
    result = simulate(PLAN, data, tmp_path / "run")
    assert arrows(result) == {"dc", "cb", "ba"}
    assert directed_by(result) == {"noise"}
    assert result["verdict"]["directed_by"]["noise"] == 3
    assert all(edge["noise"]["p"] > 0.05 and edge["noise"]["p_reversed"] < 0.001 for edge in result["edges"])
    assert any("fits one direction alone of 3 edges" in text for text in result["verdict"]["tested"])
    assert result["verdict"]["contradicted"] == []
    X = np.concatenate([one.X - one.X.mean(axis=0) for one in data.values()])
    network = json.loads((tmp_path / "run" / "lgbn.json").read_text(encoding="utf-8"))
    for edge in result["edges"]:
        x, y = (X[:, NAMES.index(edge[end])] for end in ("source", "target"))
        weight = float(x @ y / (x @ x))
        assert edge["weight"] == pytest.approx(weight, rel=1e-4)
        variance = float(np.mean((y - weight * x) ** 2))
        assert network["cpds"][edge["target"]]["variance"][0] == pytest.approx(variance, rel=1e-4)
        low, high = edge["interval"]
        assert (high - low) / 2 / 1.96 == pytest.approx(np.sqrt(variance / (x @ x)), rel=0.1)
        assert set(edge["sites"]["estimates"]) == {"x", "y", "z"}


def test_normal_noise_directs_nothing_and_says_so(tmp_path: Path) -> None:
    result = simulate(PLAN, tables(normal=True), tmp_path / "run")
    assert not arrows(result)
    assert directed_by(result) == {"nobody"}
    assert "noise" not in result["verdict"]["directed_by"]
    assert all(min(edge["noise"].values()) > 0.001 for edge in result["edges"])


@pytest.mark.parametrize("hidden", [False, True])
def test_a_hidden_cause_and_a_curve_fit_neither_direction_and_the_verdict_says_so(
    tmp_path: Path, *, hidden: bool
) -> None:
    def e(X: Matrix, rng: np.random.Generator) -> Matrix:
        if hidden:
            cause = rng.exponential(size=len(X))
            X[:, 0] = 2.0 * cause + rng.laplace(size=len(X))
            return np.asarray(cause + rng.laplace(size=len(X)))
        X[:, 0] = rng.laplace(size=len(X))
        return np.asarray(X[:, 0] + 0.3 * np.square(X[:, 0]) + rng.laplace(size=len(X)))

    plan = PLAN.with_settings(look_for_curves=False)
    result = simulate(plan, tables(e=e), tmp_path / "run")
    assert arrows(result) == {"dc", "cb"}
    (edge,) = (one for one in result["edges"] if {one["source"], one["target"]} == {"a", "e"})
    assert max(edge["noise"]["p"], edge["noise"]["p_reversed"]) < 0.001
    (said,) = (text for text in result["verdict"]["contradicted"] if "no straight line with independent noise" in text)
    assert "a -- e" in said
    assert "dc" not in said


def test_knowledge_is_not_asked_about_and_noise_goes_on_from_it(tmp_path: Path) -> None:
    wrong = PLAN.with_settings(knowledge={"required": [["a", "b"]]}, bootstrap=0)
    result = simulate(wrong, tables(), tmp_path / "wrong")
    assert {"ab", "bc", "cd"} == arrows(result), "all of it follows, and nothing is open"
    assert not any("noise" in edge for edge in result["edges"])
    asked = next(one for one in result["rounds"] if one["kind"] == "noise")
    assert asked["contributed"] == ["x", "y", "z"]
    assert all(one["up"]["formula"] == 0 for one in asked["bytes"].values()), "the round has no question"
    tier = PLAN.with_settings(knowledge={"tiers": [["d"], ["a", "b", "c", "e"]]}, bootstrap=0)
    told = simulate(tier, tables(), tmp_path / "tier")
    assert arrows(told) == {"dc", "cb", "ba"}
    assert directed_by(told) == {"knowledge"}


def test_gaps_count_where_complete_rows_stand_for_all_and_not_otherwise(tmp_path: Path) -> None:
    def lacking(X: Matrix, rng: np.random.Generator) -> Matrix:
        return np.where(rng.random(len(X)) < 0.1, np.nan, X[:, 1])

    result = simulate(PLAN, tables(b=lacking), tmp_path / "some")
    assert arrows(result) == {"dc", "cb", "ba"}
    few = simulate(PLAN, tables(b=lambda X, rng: np.where(np.arange(len(X)) > 20, np.nan, X[:, 1])), tmp_path / "few")
    assert "noise" not in directed_by(few)
    assert any("the shape of noise at" in text for text in few["verdict"]["not_tested"])


def test_levels_and_counts_are_not_asked_about(tmp_path: Path) -> None:
    dictionary = {
        **{name: {} for name in "acde"},
        "b": {"kind": "count"},
    }
    data = tables(b=lambda X, rng: rng.poisson(np.exp(0.3 * (X[:, 2] - 7.0) * 10.0)).clip(0, 1000))
    plan = PLAN.with_settings(dictionary=dictionary, bootstrap=0)
    result = simulate(plan, data, tmp_path / "run")
    assert not any("noise" in edge for edge in result["edges"] if "b" in (edge["source"], edge["target"]))
    assert any("noise" in edge for edge in result["edges"])
    # A curve is told from the end that bends, which may be the child in the network's DAG: it takes none twice.
    assert result["validation"] is not None


def test_a_plan_asks_where_it_can() -> None:
    assert PLAN.looks_at_noise
    groups = {"dictionary": {**{name: {} for name in NAMES}, "who": {"kind": "group"}}}
    for other in (
        {"look_at_noise": False},
        {"consensus": "median"},
        {"graph_class": "dag-equal-variance"},
        groups,
    ):
        assert not PLAN.with_settings(**other).looks_at_noise, other
    assert not Plan.load("private", ["look_at_noise=true"], epsilon=5.0).looks_at_noise


def test_the_verdict_says_why_a_run_does_not_ask() -> None:
    median = PLAN.with_settings(consensus="median")
    ((is_tested, said),) = noise_tests(median, None)
    assert not is_tested
    assert "the plan's consensus" in in_words(said)
    assert not list(noise_tests(PLAN.with_settings(look_at_noise=False), None))


def test_directions_hold_in_a_graph_that_is_searched_again_with_curves(tmp_path: Path) -> None:
    def e(X: Matrix, rng: np.random.Generator) -> Matrix:
        return np.asarray(np.square(X[:, 3] - 7.0) + rng.laplace(size=len(X)))

    result = simulate(PLAN, tables(e=e), tmp_path / "run")
    assert result["curves"]["variables"]
    assert {"dc", "cb", "ba"} <= arrows(result)
    assert (tmp_path / "run" / "lgbn.json").exists()


def test_the_summary_says_that_draws_tell_nothing_of_what_noise_directs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {
        True: "they tell nothing of directions by interventions, sites or noise",
        False: "by the shape of noise; the marks do not rest on it",
    }
    for normal in (False, True):
        folder = tmp_path / str(normal)
        simulate(PLAN, tables(normal=normal), folder)
        for no_hidden_causes, words in said.items():
            console = Console(width=400)
            print_summary(read_result(folder), folder, console, no_hidden_causes=no_hidden_causes, seconds=1.0)
            assert (words in capsys.readouterr().out) == (not normal)
