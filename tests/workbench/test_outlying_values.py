"""Runs over tables with errors in cells: values that lie far apart count as missing, and the result names them."""

from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RoundTask, Units
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.rounds.statistics import Answer, Task
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.algorithm.admm import initial_state, without
from fedbnsl_server.results.outlying import outlying_notes
from fedbnsl_server.results.sentences import sentence
from fedbnsl_server.rounds import statistics
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_workbench.estimator import FedSparseBNSL, ResultWarning
from fedbnsl_workbench.simulate import simulate
from workbench.test_runs_with_gaps import FEDERATION, PLAN, SITES, played

KEEP = PLAN.with_settings(preparation={"missing": "em", "outlying": "keep"})


@pytest.fixture(scope="module")
def tables() -> tuple[dict[str, Matrix], dict[str, Matrix]]:
    """With a slipped decimal point in 1 % of cells, and with these cells empty."""
    rng, slipped, empty = np.random.default_rng(8), {}, {}
    for site, X in zip(SITES, FEDERATION.tables, strict=True):
        X, wrong = X + 20.0 * X.std(axis=0), rng.random(X.shape) < 0.01
        slipped[site], empty[site] = np.where(wrong, 10.0 * X, X), np.where(wrong, np.nan, X)
    return slipped, empty


def data(tables: dict[str, Matrix]) -> dict[str, Dataset]:
    return {site: Dataset(FEDERATION.variables, X) for site, X in tables.items()}


def test_the_result_is_that_of_empty_cells_and_names_the_values(tables, tmp_path: Path) -> None:
    slipped, empty = (data(one) for one in tables)
    found, expected = simulate(PLAN, slipped, tmp_path / "slipped"), simulate(PLAN, empty, tmp_path / "empty")
    lost = {site: dict(zip(FEDERATION.variables, np.isnan(empty[site].X).sum(axis=0), strict=True)) for site in SITES}
    for name in FEDERATION.variables:
        assert found["outlying"][name]["values"] == {site: n for site in SITES if (n := int(lost[site][name]))}
    assert found["gaps"]["values"] == expected["gaps"]["values"]
    assert [(one["source"], one["target"]) for one in found["edges"]] == [
        (one["source"], one["target"]) for one in expected["edges"]
    ]
    for one, other in zip(found["edges"], expected["edges"], strict=True):
        assert one["weight"] == pytest.approx(other["weight"], rel=1e-2)
    (warning,) = found["verdict"]["outlying"]
    assert all(repr(name) in warning for name in FEDERATION.variables[:2])
    assert expected["outlying"] == {}


def test_the_result_says_on_which_side_of_the_median_values_lie_apart() -> None:
    for above, below, words in (
        (8.0, 8.0, "(8 spreads or more from the median)"),
        (None, 5.66, "(5.66 spreads or more below the median)"),
        (16.0, 19.0, "(16 spreads or more above or 19 spreads or more below the median)"),
    ):
        (told,) = outlying_notes({"bmi": {"above": above, "below": below, "values": {"north": 2}}})
        assert sentence(told).startswith(f"2 values of 'bmi' {words}: so far apart")


def test_kept_values_hide_what_the_others_tell(tables, tmp_path: Path) -> None:
    slipped, empty = (data(one) for one in tables)
    true = {(one["source"], one["target"]) for one in simulate(PLAN, empty, tmp_path / "empty")["edges"]}
    kept = {(one["source"], one["target"]) for one in simulate(KEEP, slipped, tmp_path / "kept")["edges"]}
    assert kept != true


def test_without_such_values_the_run_is_the_same_bits(tmp_path: Path) -> None:
    whole = data(dict(zip(SITES, FEDERATION.tables, strict=True)))
    looked, kept = simulate(PLAN, whole, tmp_path / "looked"), simulate(KEEP, whole, tmp_path / "kept")
    (not_looked_for,) = kept["verdict"].pop("not_tested")
    assert "outlying" in not_looked_for
    assert looked["verdict"].pop("not_tested") == []
    for key in ("edges", "fit", "verdict", "outlying", "gaps"):
        assert looked[key] == kept[key], key
    assert len(looked["rounds"]) == len(kept["rounds"])


def test_a_site_that_starts_again_in_every_round_gives_the_same_bits(tables, tmp_path: Path) -> None:
    kept = []
    simulate(PLAN, data(tables[0]), tmp_path / "run", follow=kept.append)
    again = played(tables[0], lambda t: SITES)
    assert again.refitted == kept[-1].refitted
    assert dict(again.sites) == dict(kept[-1].sites)
    assert again.outlying == kept[-1].outlying


def test_a_notebook_refits_without_these_values(tables) -> None:
    import pandas as pd

    frames = [pd.DataFrame(X, columns=list(FEDERATION.variables)) for X in tables[0].values()]
    with pytest.warns(ResultWarning, match="values of 'X2'"):
        model = FedSparseBNSL(plan="standard").fit(frames)
    own = model.personalised(frames[0])
    empty = pd.DataFrame(tables[1]["site-1"], columns=list(FEDERATION.variables))
    np.testing.assert_allclose(own.weights, model.personalised(empty).weights, rtol=1e-12)
    assert model.score(frames) > -100.0


def test_levels_are_no_numbers_and_a_plan_that_keeps_asks_for_nothing() -> None:
    plan = Plan.load("standard").with_settings(
        dictionary={"a": {}, "b": {"kind": "binary", "levels": ["no", "yes"]}, "c": {}}
    )
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.standard_t(1, 500), rng.random(500) < 0.02, rng.standard_t(1, 500)])
    answer = Participant("s", Dataset(("a", "b", "c"), X, dictionary=plan.dictionary), plan).handle(
        RoundTask(1, Task(), contributed=False)
    )
    assert isinstance(answer.content, Answer)
    assert answer.content.spreads[1] == 0.0
    assert set(answer.content.far[:, 0].tolist()) == {0, 2}
    keeps = plan.with_settings(preparation={"missing": "em"})
    silent = Participant("s", Dataset(("a", "b", "c"), X, dictionary=plan.dictionary), keeps).handle(
        RoundTask(1, Task(), contributed=False)
    )
    assert isinstance(silent.content, Answer)
    assert silent.content.spreads.size == silent.content.far.size == 0


def test_impossible_far_values_of_a_site_are_refused() -> None:
    run = Run(PLAN, PLAN.edge_mask(FEDERATION.variables), dict.fromkeys(SITES, 300))
    whole = np.ones(5)
    good = Answer(np.empty(0), whole, 300.0, np.empty(0), whole, np.array([[0, 12, 3]]))
    assert not statistics.fault(good, Task(), run)
    for spreads, far in ((np.empty(0), [[0, 12, 3]]), (whole, [[0, 12, 301]]), (whole * 1e300, [[0, 12, 3]])):
        bad = Answer(np.empty(0), whole, 300.0, np.empty(0), spreads, np.array(far))
        assert statistics.fault(bad, Task(), run), (spreads, far)
    keeps = Run(KEEP, run.mask, run.n_samples)
    assert statistics.fault(good, Task(), keeps)


def test_a_site_takes_no_limits_from_a_plan_that_keeps_all_values() -> None:
    limits = Units(np.empty(0), np.ones(5), np.full((2, 5), 10.0))
    site = Participant("s", Dataset(FEDERATION.variables, FEDERATION.tables[0]), KEEP)
    with pytest.raises(RemoteProtocolError, match="units that this run cannot have"):
        site.handle(RoundTask(1, Task(), contributed=False, units=limits))


def test_a_site_whose_values_vary_more_loses_none(tmp_path: Path) -> None:
    rng, tables = np.random.default_rng(6), {}
    for site, width in zip(SITES, (1.0, 1.0, 8.0), strict=True):
        x = width * rng.normal(size=3000)
        y = 0.8 * x + rng.normal(size=3000)
        tables[site] = Dataset(("x", "y"), np.column_stack([x, y]))
    result = simulate(PLAN, tables, tmp_path / "run")
    assert result["outlying"] == {}
    assert result["edges"] == simulate(KEEP, tables, tmp_path / "kept")["edges"]


def test_no_bin_of_a_site_breaks_the_coordinator() -> None:
    run, far = Run(PLAN, PLAN.edge_mask(FEDERATION.variables), dict.fromkeys(SITES, 300)), np.zeros((0, 3), dtype=int)
    told = dict.fromkeys(SITES, far) | {SITES[0]: np.array([[0, 2, 40], [0, 6, 2], [0, 400, 5]])}
    whole, tiny = np.ones(5), np.full(5, 1e-200)
    answers = {site: Answer(np.empty(0), whole, 300.0, np.empty(0), tiny, far) for site, far in told.items()}
    assert not any(statistics.fault(one, Task(), run) for one in answers.values())
    state = statistics.advance(initial_state(5, SITES), answers, Task(), run)
    assert state.outlying[SITES[0]] == [5, 0, 0, 0, 0]
    assert state.units is not None
    assert state.units.scales.min() > 0.1
    assert without(state, {SITES[0]}).outlying.keys() == {*SITES[1:]}
