"""FedSparseBNSL: the same graph as `fedbnsl simulate`, in the manner of scikit-learn."""

import doctest
import json
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import fedbnsl
from command_line import run_command
from fedbnsl.errors import DataError, PlanError, ResultError, SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_workbench import estimator
from fedbnsl_workbench.estimator import FedSparseBNSL, ResultWarning, SimulationWarning
from fedbnsl_workbench.tables.synthetic import synthesise

FEDERATION = synthesise(5, 5, 3, 200, 100)
# Tests of the tables and settings, for which it does not matter what a run says of itself.
pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_workbench.estimator.ResultWarning")
FAST = {"plan": "lean", "rounds": 8}


def frame(X, names=FEDERATION.variables):
    return pd.DataFrame(dict(zip(names, X.T, strict=False)))


@pytest.fixture(scope="module")
def fitted():
    return FedSparseBNSL(**FAST).fit([frame(X) for X in FEDERATION.tables])


def test_the_result_is_that_of_the_command_bit_for_bit(capsys, tmp_path, fitted):
    data = tmp_path / "data"
    synth = ["--nodes", 5, "--edges", 5, "--sites", 3, "--rows", 200, "--seed", 100]
    assert run_command(capsys, "data", "synth", *synth, "--out", data).code == 0
    out = tmp_path / "run"
    run_command(capsys, "simulate", "lean", "--data", data, "--set", "rounds=8", "--out", out)
    result = json.loads((out / "result.json").read_text())
    assert fitted.edges_ == [(e["source"], e["target"], e["weight"]) for e in result["edges"]]
    assert len(fitted.edges_) > 0
    assert [h["acyclicity"] for h in fitted.history_] == [r["acyclicity"] for r in result["rounds"]]
    raw = np.loadtxt(out / "weights.csv", delimiter=",", skiprows=1, usecols=range(1, 6))
    assert (fitted.raw_weights_ == raw).all()


def test_what_is_learned_stands_in_every_form(fitted):
    names = list(fitted.feature_names_in_)
    assert names == list(FEDERATION.variables)
    assert fitted.n_features_in_ == 5
    assert {(u, v, d["weight"]) for u, v, d in fitted.graph_.edges(data=True)} == set(fitted.edges_)
    assert list(fitted.graph_.nodes) == names
    for source, target, weight in fitted.edges_:
        assert fitted.weights_[names.index(source), names.index(target)] == weight
    assert np.count_nonzero(fitted.weights_) == len(fitted.edges_)
    assert fitted.privacy_ is None
    assert fitted.residual_variance_.shape == (5,)
    assert [h["round"] for h in fitted.history_] == list(range(1, 10))
    assert all(h["bytes_up"] > 0 and h["seconds"] > 0 for h in fitted.history_)


def test_a_class_stands_beside_the_one_dag_that_the_weights_belong_to():
    rng = np.random.default_rng(3)
    tables = [rng.standard_normal((400, 3)) @ np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1.0]]) for _ in range(3)]
    model = FedSparseBNSL(plan="lean", settings={"graph_class": "cpdag"}).fit(tables)
    assert np.argwhere(model.cpdag_).tolist() == [[0, 1], [1, 0]]
    ((source, target, weight),) = model.edges_
    assert {source, target} == {"X1", "X2"}
    assert model.undirected_edges_ == [(source, target)]
    names = list(model.feature_names_in_)
    assert model.weights_[names.index(source), names.index(target)] == weight != 0
    assert list(model.graph_.edges) == [(source, target)]
    assert model.personalised(tables[0]).dag.sum() == 1


def test_columns_in_another_order_are_the_same_table(fitted):
    tables = [frame(X) for X in FEDERATION.tables]
    tables[1] = frame(FEDERATION.tables[1][:, ::-1], FEDERATION.variables[::-1])
    assert FedSparseBNSL(**FAST).fit(tables).edges_ == fitted.edges_


def test_arrays_and_dicts_are_tables_too(fitted):
    by_site = {f"site-{k + 1}": X for k, X in enumerate(FEDERATION.tables)}
    other = FedSparseBNSL(**FAST).fit(by_site)
    assert list(other.feature_names_in_) == ["X1", "X2", "X3", "X4", "X5"]
    assert (other.weights_ == fitted.weights_).all()
    assert list(
        FedSparseBNSL(**FAST).fit({"north": by_site["site-1"], "south": by_site["site-2"]}).result_["sites"]
    ) == [
        "north",
        "south",
    ]


def broken(name, cells):
    columns = {n: FEDERATION.tables[0][:, k] for k, n in enumerate(FEDERATION.variables)}
    return [pd.DataFrame({**columns, name: cells})]


TEXT = np.array(["1.0"] * 200, dtype=object)
HOLES = np.array([*range(198), pd.NA, None], dtype=object)
NANS = np.array([*range(199), np.nan])
TIMES = np.arange(200).astype("datetime64[D]")


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (broken("X2", TEXT), "site-1: column 'X2': 200 row\\(s\\) are not numbers"),
        (broken("X2", HOLES), "site-1: of 200 rows, 2 row\\(s\\) are left out, which lack a value: 'X2' 2"),
        (broken("X2", NANS), "of 200 rows, 1 row\\(s\\) are left out, which lack a value: 'X2' 1"),
        (broken("X2", TIMES), "'X2': 200 row\\(s\\) are not numbers"),
        (broken("X2", np.ones(200)), "'X2': the same value in all 200 rows"),
        (broken("(Intercept)", np.arange(200)), "Intercept"),
        ([frame(FEDERATION.tables[0]), *broken("extra", np.arange(200))], "site-1|site-2: has 'extra', unlike site-1"),
        ([frame(FEDERATION.tables[0]), frame(FEDERATION.tables[1][:, :4])], "lacks 'X5', unlike site-1"),
        ([np.zeros((5, 3))], "5 rows; at least 20"),
        ([np.arange(30)], "1 dimension"),
        (FEDERATION.tables[0], "got one table"),
        (frame(FEDERATION.tables[0]), "got one table"),
        ([], "empty"),
        (3, "got int"),
        ({"a/b": FEDERATION.tables[0]}, "no name of a site"),
    ],
)
@pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")
def test_a_table_that_cannot_be_used_is_refused_as_a_file_is(tables, said):
    with pytest.raises(DataError, match=said):
        FedSparseBNSL(**FAST).fit(tables)


COPIED = [pd.DataFrame(np.repeat(FEDERATION.tables[0][:20], 10, axis=0), columns=list("abcde"))]
TWINS = broken("X2", FEDERATION.tables[0][:, 0])
SPARSE = broken("X2", [*FEDERATION.tables[0][:80, 1], *[np.nan] * 120])
MOSTLY_GAPS = broken("X2", [*FEDERATION.tables[0][:8, 1], *[np.nan] * 192])
COMPLETE_CASES = {"settings": {"rounds": 1, "preparation": {"missing": "complete-cases"}}}
NUMBERED = broken("X2", np.arange(200))
DESCRIBED = {"X1": {"range": [-99, 99]}, "X2": {"levels": ["no", "yes"], "kind": "binary"}}
WORDS = broken("X2", np.array(["?", *["no", "yes"] * 99, "maybe"], dtype=object))
TINY = broken("X2", FEDERATION.tables[0][:, 1] * 1e-14)


@pytest.mark.parametrize(
    ("tables", "settings", "said"),
    [
        (COPIED, {}, "200 of 200 records occur more than once"),
        (NUMBERED, {}, "column 'X2': whole numbers, each in one row only"),
        (TWINS, {}, "columns 'X1' and 'X2': equal in all 200 rows; leave one out"),
        (SPARSE, {}, "120 row(s) lack a value, and count for those that they have: 'X2' 120"),
        (SPARSE, COMPLETE_CASES, "without 'X2' (missing in 120), 200 rows are complete"),
        (SPARSE, {"plan": "fed-sparse"}, "The plan wants none to be left out"),
        (MOSTLY_GAPS, COMPLETE_CASES, "or fewer than 20 are left; without 'X2' (missing in 192), 200 rows are"),
        ([np.zeros((5, 3))], {}, "5 rows; at least 20 are needed"),
        (broken("X2", TEXT), {}, "are not numbers"),
        (broken("X2", np.ones(200)), {}, "the same value in all 200 rows"),
        (WORDS, {"dictionary": DESCRIBED}, "(where these stand for a missing value, make them None or NaN: "),
        ([np.ones((30, 2)) * 1e30], {}, "beyond 1e+15, the largest number"),
        (TINY, {"plan": "lean", "dictionary": {f"X{k}": {} for k in range(1, 6)}}, "'X2': the root of the mean square"),
        (
            [frame(FEDERATION.tables[0]), frame(FEDERATION.tables[1][:, :4])],
            {"plan": "fed-sparse"},
            "lacks 'X5', unlike site-1",
        ),
        ([frame(FEDERATION.tables[0]), frame(FEDERATION.tables[1][:, :4])], {}, "this table does not have 'X5'"),
    ],
)
def test_what_is_said_of_a_table_names_no_option_or_file_of_a_site(tables, settings, said):
    """Warnings, refusals and what helps hold in a notebook."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            FedSparseBNSL(**{"settings": {"rounds": 1}, **settings}).fit(tables)
            texts = []
        except DataError as error:
            texts = [str(error), error.remedy]
    texts += [str(one.message) for one in warned]
    assert any(said in text for text in texts), texts
    for text in texts:
        assert not re.search(r"(^|[ (`])--[a-z]|columns\.toml|policy\.toml|fedbnsl (participant|data)", text), text


def test_what_a_file_warns_of_is_warned_of():
    codes = np.arange(200) % 3 - 1
    with pytest.warns(DataWarning, match="look like categories"):
        model = FedSparseBNSL(**FAST).fit(broken("X2", codes))
    assert len([text for text in model.warnings_ if "look like categories" in text]) == 1


def test_it_keeps_the_conventions_of_scikit_learn(fitted):
    model = FedSparseBNSL(l1_weight=0.2, settings={"value_type": "float32"})
    assert repr(model) == "FedSparseBNSL(l1_weight=0.2, settings={'value_type': 'float32'})"
    copy = clone(model).set_params(rounds=5)
    assert copy.get_params()["l1_weight"] == 0.2
    assert model.rounds is None
    again = pickle.loads(pickle.dumps(fitted))
    assert again.edges_ == fitted.edges_
    assert not hasattr(clone(fitted), "edges_")
    for call in (model.score, model.personalised):
        with pytest.raises(NotFittedError):
            call(list(FEDERATION.tables))


@pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")
def test_scores_need_complete_rows_where_a_run_does_not():
    model = FedSparseBNSL(settings={"rounds": 1}).fit(MOSTLY_GAPS)
    with pytest.raises(DataError, match="8 of 200 rows are without a missing value; 20 are needed"):
        model.score(MOSTLY_GAPS)


def test_parameters_replace_settings_of_the_plan_and_the_rest_stays(tmp_path):
    base = Plan(rounds=5, threshold=0.4)
    path = tmp_path / "plan.toml"
    path.write_text(base.to_toml())
    for plan in (base, path, str(path)):
        model = FedSparseBNSL(l1_weight=0.3, plan=plan, settings={"value_type": "float32"}).fit(list(FEDERATION.tables))
        used = model.plan_
        assert (used.rounds, used.threshold, used.l1_weight, used.value_type) == (5, 0.4, 0.3, "float32")
        assert used.n_participants == 3
    with pytest.raises(PlanError, match="did you mean rounds"):
        FedSparseBNSL(settings={"round": 3}).fit(list(FEDERATION.tables))
    with pytest.raises(PlanError, match="l1_weight"):
        FedSparseBNSL(l1_weight=-1).fit(list(FEDERATION.tables))


def test_without_a_plan_it_is_standard_and_a_private_run_is_never_made_of_it_in_passing():
    tables = list(FEDERATION.tables)
    assert FedSparseBNSL().fit(tables).plan_ == Plan.load("standard")
    private = {"local_solver": "dp-pgcd", "privacy.epsilon": 1.0, "privacy.feature_bounds": [9.0]}
    with pytest.raises(PlanError, match="send_step"):
        FedSparseBNSL(plan="lean", rounds=2, local_steps=2, settings=private).fit(tables)
    with pytest.warns(SimulationWarning):
        used = FedSparseBNSL(rounds=2, local_steps=2, refit_rounds=0, plan="fed-sparse", settings=private).fit(tables)
    assert used.plan_.moments_rounds == 0


def test_a_private_fit_repeats_with_its_seed_and_says_that_it_guarantees_nothing():
    model = FedSparseBNSL(rounds=3, epsilon=4.0, noise_seed=1)
    with pytest.warns(SimulationWarning, match="guarantees nothing") as caught:
        model.fit(list(FEDERATION.tables))
    assert len(caught) == 1
    assert "a simulation keeps no ledger" in model.privacy_["no_guarantee_because"]
    assert model.plan_.privacy.epsilon == 4.0
    first = model.raw_weights_
    with pytest.warns(SimulationWarning):
        assert (model.fit(list(FEDERATION.tables)).raw_weights_ == first).all()
    with pytest.raises(SetupError, match="noise_seed"):
        FedSparseBNSL(noise_seed=1).fit(list(FEDERATION.tables))
    with pytest.raises(PlanError, match="epsilon"):
        FedSparseBNSL(epsilon=-1.0).fit(list(FEDERATION.tables))


@pytest.mark.parametrize(
    ("epsilon", "nearest"),
    [
        *[(0.1, 0.5), (0.6, 0.5), (0.9, 1.0), (1.3, 1.0), (1.6, 2.0), (2.5, 2.0)],
        *[(4.0, 5.0), (5.0, 5.0), (6.0, 5.0), (9.0, 10.0), (80.0, 10.0)],
    ],
)
def test_a_budget_between_tuned_ones_has_the_settings_of_the_nearest(epsilon, nearest):
    with pytest.warns(SimulationWarning):
        used = FedSparseBNSL(epsilon=epsilon, rounds=1, local_steps=1).fit(list(FEDERATION.tables)).plan_
    wanted = Plan.load("private-steps", epsilon=nearest)
    changed = {"rounds": 1, "local_steps": 1, "n_participants": 3}
    privacy = {**wanted.model_dump()["privacy"], "epsilon": epsilon}
    assert used == wanted.with_settings(**changed, privacy=privacy)


def test_personalised_weights_are_the_sites_own_regressions(fitted):
    X = FEDERATION.tables[0]
    own = fitted.personalised(frame(X[:, ::-1], FEDERATION.variables[::-1]))
    for j in range(5):
        parents = np.flatnonzero(fitted.weights_[:, j])
        expected = np.linalg.lstsq(X[:, parents], X[:, j], rcond=None)[0]
        np.testing.assert_allclose(own.weights[parents, j], expected, rtol=1e-9)


def test_the_score_is_minus_the_mean_loss_and_selects_over_sites(fitted):
    losses = [((X - X @ fitted.weights_) ** 2).sum() / (2 * len(X)) for X in FEDERATION.tables]
    assert fitted.score([frame(X) for X in FEDERATION.tables]) == pytest.approx(-np.mean(losses))
    scores = cross_val_score(FedSparseBNSL(**FAST), list(FEDERATION.tables), cv=3)
    assert scores.shape == (3,)
    assert np.isfinite(scores).all()


def test_a_run_folder_is_kept_if_asked_and_never_overwritten(tmp_path):
    model = FedSparseBNSL(**FAST, out=tmp_path / "run").fit(list(FEDERATION.tables))
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == model.result_
    with pytest.raises(ResultError, match="holds a run already"):
        model.fit(list(FEDERATION.tables))


def test_an_interrupted_fit_leaves_the_earlier_one_and_a_readable_folder(tmp_path, monkeypatch):
    model = FedSparseBNSL(**FAST).fit(list(FEDERATION.tables))
    before = model.edges_
    display = type(
        "Interrupts", (estimator.RunDisplay,), {"show": lambda self, status: (_ for _ in ()).throw(KeyboardInterrupt)}
    )
    monkeypatch.setattr(estimator, "RunDisplay", display)
    with pytest.raises(KeyboardInterrupt):
        model.set_params(progress=True, out=tmp_path / "run", l1_weight=5.0).fit(list(FEDERATION.tables))
    assert model.edges_ is before
    assert model.plan_.l1_weight == 0.1
    assert json.loads((tmp_path / "run" / "result.json").read_text())["state"] == "interrupted"


def test_nothing_is_printed_unless_asked(capsys):
    FedSparseBNSL(**FAST).fit(list(FEDERATION.tables))
    assert capsys.readouterr() == ("", "")
    FedSparseBNSL(**FAST, progress=True).fit(list(FEDERATION.tables))
    out, err = capsys.readouterr()
    assert out == ""
    assert "round" in err


def test_the_example_of_the_docstring_is_true():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = doctest.testmod(estimator)
    assert outcome.attempted > 4
    assert outcome.failed == 0


def test_the_package_stays_light_until_the_class_is_asked_for():
    heavy = "{'numpy', 'sklearn', 'joblib', 'networkx'} & set(sys.modules)"
    code = f"import sys, fedbnsl; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert fedbnsl.FedSparseBNSL is FedSparseBNSL
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedbnsl.nothing


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_among_the_tables_is_answered_with_how_to_read_it(kind):
    with pytest.raises(DataError, match="site-1: expected a data frame or an array, got a path") as caught:
        FedSparseBNSL().fit([kind("north.csv")])
    assert "pandas.read_csv('north.csv'), after `pip install pandas`" in str(caught.value)


def test_settings_may_be_numbers_of_numpy_as_in_grids(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    number = np.int64(2)
    model = FedSparseBNSL(plan="lean", rounds=number, threshold=np.float64(0.2), settings={"n_participants": number})
    model.set_params(out="~/run").fit(list(FEDERATION.tables[:2]))
    assert (model.plan_.rounds, model.plan_.threshold) == (2, 0.2)
    assert (tmp_path / "run" / "result.json").is_file(), "~ is the home folder"


def test_under_standard_no_table_is_said_to_lack_an_intercept():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        FedSparseBNSL(plan="standard").fit([X + 100.0 for X in FEDERATION.tables])
    with pytest.warns(DataWarning) as caught:
        FedSparseBNSL(**FAST).fit([X + 100.0 for X in FEDERATION.tables])
    about_tables = [str(one.message) for one in caught if one.category is DataWarning]
    assert [text.partition(":")[0] for text in about_tables] == ["every site"]


def test_under_privacy_rows_without_a_value_are_said_to_count_for_those_that_they_have():
    tables = [frame(X) for X in FEDERATION.tables]
    tables[0].loc[3, "X2"] = np.nan
    dictionary = {name: {"range": [-20.0, 20.0]} for name in FEDERATION.variables}
    with pytest.warns((DataWarning, SimulationWarning)) as caught:
        FedSparseBNSL(plan="private", epsilon=5.0, dictionary=dictionary, noise_seed=1).fit(tables)
    texts = [str(one.message) for one in caught]
    assert any("site-1: 1 row(s) lack a value, and count for those that they have" in text for text in texts)
    assert not any("left out" in text for text in texts)


def test_what_the_summary_says_in_red_is_a_warning_in_a_notebook():
    rng = np.random.default_rng(1)

    def table(slope):
        X = rng.standard_normal((400, 3))
        X[:, 1] += slope * X[:, 0]
        return X

    plan = {"plan": "standard", "settings": {"bootstrap": 0}}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResultWarning)
        FedSparseBNSL(**plan).fit([table(1.0), table(1.0), table(1.0)])
    with pytest.warns(ResultWarning) as caught:
        FedSparseBNSL(**plan).fit([table(1.0), table(1.0), table(-0.5)])
    told = [str(one.message) for one in caught if one.category is ResultWarning]
    assert any(text.startswith("Site-3 stands out") for text in told)
    assert any("contradict what was assumed: Sites differ more than chance gives" in text for text in told)
