"""Frames of a notebook with different columns, gaps and rows of a patient are tables of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedbnsl import join, serve
from fedbnsl.errors import DataError, FedbnslError, PlanError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.refit import personalise, unknown_in_words
from fedbnsl_workbench.estimator import FedSparseBNSL
from fedbnsl_workbench.network import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")

FEDERATION = synthesise(5, 5, 3, 300, 7)
STANDARD = Plan.load("standard").with_settings(bootstrap=0)
Frames = dict[str, pd.DataFrame]


@pytest.fixture
def frames() -> Frames:
    """One site lacks X2, another X4, and the third a tenth of its cells."""
    north, south, west = (pd.DataFrame(X, columns=list(FEDERATION.variables)) for X in FEDERATION.tables)
    holes = np.random.default_rng(2).random(west.shape) < 0.1
    return {"north": north.drop(columns="X2"), "south": south[["X5", "X3", "X2", "X1"]], "west": west.mask(holes)}


def test_a_column_that_a_frame_lacks_is_absent_at_its_site(frames: Frames) -> None:
    read = site_tables(frames, may_lack=True)
    assert {site: table.absent for site, table in read.items()} == {"north": ("X2",), "south": ("X4",), "west": ()}
    for site, table in read.items():
        expected = frames[site].reindex(columns=list(table.variables)).to_numpy()
        assert np.array_equal(table.X, expected, equal_nan=True)
    assert sorted(read["north"].variables) == list(FEDERATION.variables)


@pytest.mark.parametrize("described", [None, {f"X{k}": {} for k in range(1, 6)}])
def test_the_run_is_that_of_tables_with_empty_columns(
    frames: Frames, described: dict[str, Any] | None, tmp_path: Path
) -> None:
    fitted = FedSparseBNSL(plan=STANDARD, dictionary=described).fit(frames)
    names = list(fitted.feature_names_in_)
    empty = {site: frame.reindex(columns=names) for site, frame in frames.items()}
    whole = FedSparseBNSL(plan=STANDARD, dictionary=described).fit(empty)
    assert fitted.edges_ == whole.edges_
    assert fitted.result_["gaps"] == whole.result_["gaps"]
    assert fitted.result_["gaps"]["values"]["north"]["X2"] == 0
    same = simulate(STANDARD, frames, tmp_path / "run", dictionary=described)
    assert [(edge["source"], edge["target"], edge["weight"]) for edge in same.result["edges"]] == fitted.edges_


def test_a_fit_warns_of_the_columns_that_it_takes_as_absent(frames: Frames) -> None:
    with pytest.warns(match="this table does not have 'X2'"):
        FedSparseBNSL(plan=STANDARD).fit(frames)


def test_own_weights_of_a_frame_are_those_of_its_own_columns(frames: Frames) -> None:
    model = FedSparseBNSL(plan=STANDARD).fit(frames)
    own = model.personalised(frames["north"])
    X = frames["north"] - frames["north"].mean()
    known = {}
    for k, name in enumerate(own.variables):
        parents = [own.variables[j] for j in np.flatnonzero(own.dag[:, k])]
        if parents and "X2" not in (name, *parents):
            known[name] = np.linalg.lstsq(X[parents].to_numpy(), X[name].to_numpy(), rcond=None)[0]
            assert own.weights[own.dag[:, k], k] == pytest.approx(known[name], rel=1e-6)
    assert known
    of_absent = own.variables.index("X2")
    assert np.isnan(own.weights[own.dag[:, of_absent], of_absent]).all()
    assert own.dag[:, of_absent].any() or own.dag[of_absent].any()


def test_a_group_column_makes_records_of_rows_and_is_no_variable(frames: Frames) -> None:
    described = {"patient": {"kind": "group"}, **{name: {} for name in FEDERATION.variables}}
    visits = {site: frame.assign(patient=np.arange(len(frame)) // 3) for site, frame in frames.items()}
    fitted = FedSparseBNSL(plan=STANDARD, dictionary=described).fit(visits)
    assert list(fitted.feature_names_in_) == list(FEDERATION.variables)
    assert {site: of["n_samples"] for site, of in fitted.result_["sites"].items()} == dict.fromkeys(visits, 100)
    means = {site: frame.groupby("patient").mean() for site, frame in visits.items()}
    by_hand = FedSparseBNSL(plan=STANDARD).fit(means)
    assert {frozenset(edge[:2]) for edge in fitted.edges_} == {frozenset(edge[:2]) for edge in by_hand.edges_}
    with pytest.raises(DataError, match=r"lacks 'patient', of kind group: number the rows, .* or, .* leave it out"):
        FedSparseBNSL(plan=STANDARD, dictionary=described).fit(frames)


def test_a_frame_without_the_group_column_of_others_has_one_row_a_group(frames: Frames) -> None:
    described = {"patient": {"kind": "group"}, **{name: {} for name in FEDERATION.variables}}
    visits = {**frames, "west": frames["west"].assign(patient=np.arange(len(frames["west"])) // 3)}
    with pytest.warns(match="north, south: this table does not have 'patient': no two rows belong together"):
        fitted = FedSparseBNSL(plan=STANDARD, dictionary=described).fit(visits)
    numbered = {"patient": np.arange(300)}
    same = {site: frame if "patient" in frame else frame.assign(**numbered) for site, frame in visits.items()}
    assert fitted.edges_ == FedSparseBNSL(plan=STANDARD, dictionary=described).fit(same).edges_


def test_a_frame_without_the_column_that_orders_the_rows_is_refused_with_a_way_on(frames: Frames) -> None:
    described = {"visit": {"kind": "time"}, **{name: {} for name in FEDERATION.variables}}
    ordered = {**frames, "west": frames["west"].assign(visit=np.arange(len(frames["west"])))}
    with pytest.raises(DataError, match=r"north: lacks 'visit', .* unless lags = 1 .* leave it out of the dictionary"):
        FedSparseBNSL(plan=STANDARD, dictionary=described).fit(ordered)


@pytest.mark.filterwarnings("ignore::fedbnsl_workbench.estimator.SimulationWarning")
def test_a_private_plan_takes_frames_with_different_columns_and_says_which(frames: Frames, tmp_path: Path) -> None:
    described = {name: {"range": [-20, 20]} for name in FEDERATION.variables}
    private = Plan.load("private", epsilon=20.0)
    fitted = FedSparseBNSL(plan=private, dictionary=described, noise_seed=1).fit(frames)
    assert fitted.plan_.absent.root == {"north": ("X2",), "south": ("X4",)}
    same = simulate(private, frames, tmp_path / "run", dictionary=described, noise_seed=1)
    assert [(edge["source"], edge["target"], edge["weight"]) for edge in same.result["edges"]] == fitted.edges_
    own = fitted.personalised(frames["north"])
    assert np.isfinite(own.residual_variance).sum() > 0
    assert np.isnan(own.residual_variance[own.variables.index("X2")])


@pytest.mark.filterwarnings("ignore::fedbnsl_workbench.estimator.SimulationWarning")
def test_two_variables_that_no_frame_has_together_are_refused_by_a_private_plan(frames: Frames) -> None:
    described = {name: {"range": [-20, 20]} for name in FEDERATION.variables}
    apart = {**frames, "west": frames["west"].drop(columns="X2")}
    with pytest.raises(PlanError, match="no two variables that no site has together, such as 'X2' and 'X4'"):
        FedSparseBNSL(plan="private", epsilon=20.0, dictionary=described).fit(apart)


def test_a_site_without_a_table_is_named_if_the_plan_calls_variables_absent_there(frames: Frames) -> None:
    with pytest.raises(PlanError, match="absent: no site is called 'east'; the sites are north, south, west"):
        FedSparseBNSL(plan=STANDARD, settings={"absent": {"east": ["X1"]}}).fit(frames)


def _renamed(frames: Frames) -> Frames:
    return {**frames, "south": frames["south"].rename(columns={"X1": "x 1"})}


def _bare(frames: Frames) -> Frames:
    return {**frames, "south": frames["south"][["X1"]]}


def _array(frames: Frames) -> dict[str, Any]:
    return {**frames, "south": FEDERATION.tables[1][:, :4]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_renamed, "north: lacks 'x 1', and has 'X1': if they are one variable, give them one name"),
        (_bare, "south: 1 of the variables; a network needs at least two"),
        (_array, "south: lacks 'X5' and has 'X2', unlike north"),
    ],
)
def test_what_is_no_absent_column_is_refused(
    frames: Frames, change: Callable[[Frames], dict[str, Any]], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        FedSparseBNSL(plan=STANDARD).fit(change(frames))


def test_names_that_one_frame_or_the_dictionary_tells_apart_are_two_variables(frames: Frames) -> None:
    cells = {"X1": "CD4+", "X2": "CD4-"}
    together = {site: frame.rename(columns=cells) for site, frame in frames.items()}  # west has both
    assert site_tables(together, may_lack=True)["north"].absent == ("CD4-",)
    apart = {"north": together["north"], "south": together["south"].drop(columns="CD4+")}
    with pytest.raises(DataError, match="north: lacks 'CD4-', and has 'CD4\\+'"):
        site_tables(apart, may_lack=True)
    described = Dictionary.from_plain({name: {} for name in ("CD4+", "CD4-", "X3", "X4", "X5")}, origin="here")
    assert site_tables(apart, dictionary=described, may_lack=True)["south"].absent == ("CD4+", "X4")


def test_a_plan_of_complete_rows_refuses_frames_with_different_columns(frames: Frames) -> None:
    for plan in ("lean", STANDARD.with_settings(preparation={"missing": "complete-cases"})):
        with pytest.raises(DataError, match="south: lacks 'X4' and has 'X2', unlike north"):
            FedSparseBNSL(plan=plan).fit(frames)


def test_three_frames_with_disjoint_columns_are_refused_and_so_is_a_variable_without_any_value() -> None:
    X = dict(zip(("north", "south", "west"), synthesise(6, 5, 3, 300, 7).tables, strict=True))
    disjoint = {
        site: pd.DataFrame(table[:, 2 * k : 2 * k + 2], columns=[f"X{2 * k + 1}", f"X{2 * k + 2}"])
        for k, (site, table) in enumerate(X.items())
    }
    with pytest.raises(FedbnslError, match=r"no row has a value both of .*: nothing links these variables") as refused:
        FedSparseBNSL(plan=STANDARD).fit(disjoint)
    assert "two runs" in refused.value.remedy
    nowhere = {site: pd.DataFrame(table).rename(columns=str).assign(crp=np.nan) for site, table in X.items()}
    with pytest.raises(FedbnslError, match=r"variable\(s\) 'crp' have no value at any site") as refused:
        FedSparseBNSL(plan=STANDARD).fit(nowhere)
    assert "Leave them out" in refused.value.remedy


@pytest.mark.parametrize("described", [None, {f"X{k}": {} for k in range(1, 6)}])
def test_join_takes_a_frame_without_a_column_and_says_which_own_weights_are_not_known(
    described: dict[str, Any] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = {f"s{k}": pd.DataFrame(X, columns=list(FEDERATION.variables)) for k, X in enumerate(FEDERATION.tables)}
    tables["s0"] = tables["s0"].drop(columns="X3")
    how: dict[str, Any] = {"dictionary": described} if described else {"variables": list(FEDERATION.variables)}
    run = serve(STANDARD, sites=3, out=tmp_path / "run", **how)
    taken = [
        join(
            table,
            run.address,
            site=site,
            dictionary=described,
            absent=["X3"] if site == "s0" else [],
            out=tmp_path / site,
            wait=False,
        )
        for site, table in tables.items()
    ]
    assert {one.result(timeout=120).variables for one in taken} == {FEDERATION.variables}
    assert run.network().result["gaps"]["values"]["s0"]["X3"] == 0
    own = pd.read_csv(tmp_path / "s0" / "personalised-edges.csv")
    at_x3 = own["target"].isin({"X3", *own["target"][own["source"] == "X3"]})
    assert at_x3.any()
    assert own["weight"].isna().tolist() == at_x3.tolist()
    told = capsys.readouterr().err
    assert (
        f"s0: {at_x3.sum()} of {len(own)} edges have no weight here: this table has no value of 'X3'; they are" in told
    )
    assert told.count("have no weight here") == 1


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        (["X1"], "'X1': called absent, and the table has such a column"),
        (["crp"], "'crp': called absent, and no variable is called so"),
        ([], "X2"),
    ],
)
def test_what_join_is_told_to_be_absent_must_be(frames: Frames, absent: list[str], said: str) -> None:
    described = {f"X{k}": {} for k in range(1, 6)}
    with pytest.raises(DataError, match=said):
        join(frames["north"], "127.0.0.1:1", site="north", dictionary=described, absent=absent)
    with pytest.raises(DataError, match="an array has no names"):
        join(np.zeros((50, 3)), "127.0.0.1:1", site="north", absent=["X4"])


def test_own_weights_that_are_not_known_are_told_with_the_reason() -> None:
    dag = np.zeros((4, 4), dtype=bool)
    dag[[0, 1, 2], [2, 2, 3]] = True
    X = np.random.default_rng(0).standard_normal((40, 4))
    X[::2, 0] = X[1::2, 1] = np.nan
    table = Dataset(("a", "b", "c", "d"), X)
    told = unknown_in_words(personalise(table, dag, intercept=True), table)
    assert told == "2 of 3 edges have no weight here: this table has no row with two of 'c' and its parents"
    X[:, 3] = np.nan
    told = unknown_in_words(personalise(table, dag, intercept=True), table)
    assert told.startswith(
        "3 of 3 edges have no weight here: this table has no value of 'd', and no row with two of 'c'"
    )
    whole = Dataset(table.variables, np.nan_to_num(X))
    assert not unknown_in_words(personalise(whole, dag, intercept=True), whole)
