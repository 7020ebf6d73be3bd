"""Regressions of whole runs, against statsmodels on all rows with a dummy for each site."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from rich.console import Console
from scipy import optimize, stats

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.results.numbers import ratio, signed
from fedbnsl_server.results.result_schema import Result
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.scoring.evaluation import read_result
from fedbnsl_workbench.simulate import simulate

WARD = Dictionary.model_validate(
    {
        "age": {"unit": "years"},
        "sex": {"kind": "binary", "levels": ["f", "m"]},
        "smoker": {"kind": "binary", "levels": ["no", "yes"]},
        "ward": {"kind": "nominal", "levels": ["a", "b", "c", "d"]},
        "visits": {"kind": "count"},
    }
)
NAMES = tuple(column.name for column in WARD.columns())
CHILDREN = ("smoker", "ward", "visits")
PLAN = Plan.load("standard").with_settings(
    n_participants=3,
    dictionary=WARD.model_dump(),
    bootstrap=0,
    knowledge={"tiers": [["age", "sex"], ["smoker"], ["ward", "visits"]]},
)
SITES = ("here", "there", "yonder")


def drawn(n: int, shift: float, seed: int) -> Matrix:
    rng = np.random.default_rng(seed)
    age, sex = rng.normal(60 + 3 * shift, 10, n), rng.integers(0, 2, n)
    smoker = rng.random(n) < 1 / (1 + np.exp(1 - 0.2 * shift - 0.9 * sex - 0.04 * (age - 60)))
    b, c, d = 0.8 * smoker - 0.03 * (age - 60), -0.4 + 1.1 * smoker + shift / 3, 0.04 * (age - 60) - 0.9 * smoker
    odds = np.exp(np.stack([np.zeros(n), b, c, d], axis=1))
    ward = ((odds / odds.sum(axis=1, keepdims=True)).cumsum(axis=1) < rng.random(n)[:, None]).sum(axis=1)
    visits = np.log1p(rng.poisson(np.exp(0.3 + 0.1 * shift + 0.4 * smoker + 0.02 * (age - 60))))
    return np.column_stack([age, sex, smoker, *(ward == k for k in (1, 2, 3)), visits]).astype(np.float64)


def tables(n: int = 500) -> dict[str, Matrix]:
    return {site: drawn(n + 100 * k, k, seed=k) for k, site in enumerate(SITES)}


def learned(at: Mapping[str, Matrix], out: Path, plan: Plan = PLAN, names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    data = {site: Dataset(names, X, dictionary=plan.dictionary) for site, X in at.items()}
    simulate(plan.with_settings(n_participants=len(at)), data, out)
    result = read_result(out)
    Result.model_validate(result)
    return result


def by_child(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["child"]: one for one in result["regressions"]}


def pooled_fit(child: str, parents: list[str], at: Mapping[str, Matrix]) -> tuple[Matrix, Matrix]:
    """Coefficients and standard errors of statsmodels, in the order of `estimates`."""
    own = [NAMES.index(column.name) for column in WARD[child].columns(child)]
    used = [*own, *map(NAMES.index, parents)]
    rows = np.vstack([np.column_stack([X[:, used], np.full(len(X), k)]) for k, X in enumerate(at.values())])
    rows = rows[~np.isnan(rows).any(axis=1)]
    y, k = rows[:, : len(own)], len(own)
    sites = np.unique(rows[:, -1])
    Z = np.column_stack([rows[:, k:-1], rows[:, [-1]] == sites])
    match WARD[child].kind:
        case "binary":
            fit = sm.Logit(y[:, 0], Z).fit(disp=0, method="newton", tol=1e-12)
        case "nominal":
            fit = sm.MNLogit(y @ np.arange(1, k + 1), Z).fit(disp=0, method="newton", tol=1e-12, maxiter=50)
        case _:
            fit = sm.GLM(np.rint(np.expm1(y[:, 0])), Z, family=sm.families.Poisson()).fit(tol=1e-13)
    p = len(parents)
    errors = np.asarray(fit.bse)
    if WARD[child].kind == "count":
        errors = errors * max(fit.pearson_chi2 / fit.df_resid, 1.0) ** 0.5
    return np.asarray(fit.params)[:p].T.ravel(), errors[:p].T.ravel()


def assert_as_pooled(result: Mapping[str, Any], at: Mapping[str, Matrix], children: tuple[str, ...] = CHILDREN) -> None:
    found = by_child(result)
    for child in children:
        told = found[child]["estimates"]
        parents = list(dict.fromkeys(one["source"] for one in told))
        beta, errors = pooled_fit(child, parents, at)
        assert [one["log_ratio"] for one in told] == pytest.approx(beta, abs=1e-6)
        assert [one["standard_error"] for one in told] == pytest.approx(errors, abs=1e-6)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return learned(tables(), tmp_path_factory.mktemp("ratios") / "run")


def test_ratios_are_those_of_one_regression_on_all_rows_with_an_intercept_for_each_site(
    result: dict[str, Any],
) -> None:
    assert {child: one["kind"] for child, one in by_child(result).items()} == {
        "smoker": "odds ratio",
        "ward": "odds ratio",
        "visits": "rate ratio",
    }
    assert_as_pooled(result, tables())
    one = by_child(result)["smoker"]["estimates"][0]
    low, high = one["interval"]
    assert (low, one["estimate"], high) == pytest.approx(
        tuple(np.exp(one["log_ratio"] + z * one["standard_error"]) for z in (-1.959964, 0.0, 1.959964))
    )


def test_sites_of_one_law_with_other_shares_of_levels_do_not_differ(result: dict[str, Any]) -> None:
    assert all(one["agreement"]["p"] > 0.01 for one in result["regressions"])
    assert not [text for text in result["verdict"]["contradicted"] if "differ" in text]


def test_a_site_with_other_ratios_is_told(tmp_path: Path) -> None:
    at = tables(1500)
    turned = drawn(1500, 0.0, seed=9)
    age = turned[:, 0]
    turned[:, 0] = 120 - age  # every effect of age is the opposite
    result = learned({**at, "beyond": turned}, tmp_path / "run")
    assert by_child(result)["ward"]["agreement"]["p"] < 1e-6
    assert any("in the ratios of" in text and "'ward'" in text for text in result["verdict"]["contradicted"])


CODED = Dictionary.model_validate(
    {
        "x": {},
        "z": {"kind": "binary", "levels": ["no", "yes"]},
        "y": {"kind": "binary", "levels": ["0", "1"]},
    }
)


def of_outcome(slopes: Sequence[float], swapped: int | None = None) -> dict[str, Matrix]:
    found: dict[str, Matrix] = {}
    for k, slope in enumerate(slopes):
        rng = np.random.default_rng(k)
        x, z = rng.normal(0.2 * k, 1, 1000 + 200 * k), rng.random(1000 + 200 * k) < 0.4
        y = rng.random(len(x)) < 1 / (1 + np.exp(0.5 - 0.2 * k - slope * x - 0.8 * z))
        found[("north", "south", "east", "west")[k]] = np.column_stack([x, z, y ^ (k == swapped)]).astype(np.float64)
    return found


def learned_outcome(at: Mapping[str, Matrix], out: Path) -> dict[str, Any]:
    plan = Plan.load("standard").with_settings(
        dictionary=CODED.model_dump(), bootstrap=0, knowledge={"tiers": [["x", "z"], ["y"]]}
    )
    return learned(at, out, plan, ("x", "z", "y"))


def test_a_site_that_codes_an_outcome_the_other_way_is_named_with_its_ratios(tmp_path: Path) -> None:
    result = learned_outcome(of_outcome((1.0, 1.0, 1.0, 1.0), swapped=2), tmp_path / "run")
    one = by_child(result)["y"]
    assert one["odd_site"] == "east"
    for estimate in one["estimates"]:
        ratios = {site: own["estimate"] for site, own in estimate["sites"].items()}
        assert ratios["east"] < 0.6
        assert min(ratio for site, ratio in ratios.items() if site != "east") > 1.5
        assert all(own["interval"] is None for own in estimate["sites"].values()), "all are far from the common ratio"
    odd = result["influence"]["odd"]
    assert (odd["site"], odd["differs_in"]) == ("east", [["x", "y"], ["z", "y"]])
    assert any("east differs from all other sites in x -- y" in text for text in result["warnings"])
    (said,) = (text for text in one["notes"] if text.startswith("sites differ; without east the others agree. For x"))
    assert "east about 0.4" in said
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "<li>east about 0.4" in page


def test_sites_that_differ_have_the_ratios_of_their_own_rows(tmp_path: Path) -> None:
    at = of_outcome((0.5, 0.7, 0.9, 1.1))
    one = by_child(learned_outcome(at, tmp_path / "run"))["y"]
    assert one["odd_site"] is None
    assert (one["estimates"][0]["source"], one["estimates"][0]["target"]) == ("x", "y")
    for site, own in one["estimates"][0]["sites"].items():
        alone = sm.Logit(at[site][:, 2], sm.add_constant(at[site][:, :2])).fit(disp=0)
        assert np.log(own["estimate"]) == pytest.approx(alone.params[1], abs=0.5 * alone.bse[1])
        low, high = np.log(own["interval"])
        assert (high - low) / 3.92 == pytest.approx(alone.bse[1], rel=0.15)


def test_where_sites_agree_none_has_ratios_by_itself(tmp_path: Path) -> None:
    result = learned_outcome(of_outcome((1.0, 1.0, 1.0, 1.0)), tmp_path / "run")
    one = by_child(result)["y"]
    assert one["agreement"]["p"] > 0.05
    assert ([told["sites"] for told in one["estimates"]], one["odd_site"]) == ([None, None], None)
    assert result["influence"]["odd"] is None


def test_rows_with_a_gap_in_a_family_are_left_out_of_it_alone(tmp_path: Path) -> None:
    at = tables()
    at["here"][::5, NAMES.index("age")] = np.nan
    at["there"][:, NAMES.index("visits")] = np.nan  # a column that a site does not have
    result = learned(at, tmp_path / "run")
    assert_as_pooled(result, at)
    visits = by_child(result)["visits"]
    assert visits["rows"] == sum(int((~np.isnan(at[site][:, [0, 6]]).any(axis=1)).sum()) for site in at)
    assert "ratios_of_rows" in visits["codes"]


def test_a_site_with_one_level_or_without_a_level_tells_what_it_can(tmp_path: Path) -> None:
    at = tables()
    at["here"][:, NAMES.index("smoker")] = 1.0  # its regression is that of the other sites
    at["there"] = at["there"][at["there"][:, 3:6].sum(axis=1) == 1.0]  # nobody on ward a, the reference
    at["yonder"] = at["yonder"][at["yonder"][:, 5] == 0.0]  # nobody on ward d
    result = learned(at, tmp_path / "run")
    others = {site: X for site, X in at.items() if site != "here"}
    assert_as_pooled(result, others, ("smoker",))
    assert by_child(result)["smoker"]["rows"] == sum(map(len, others.values()))
    ward = by_child(result)["ward"]
    assert all(one["estimate"] is not None for one in ward["estimates"])


def test_separated_levels_get_a_ridge_that_is_named(tmp_path: Path) -> None:
    at = tables()
    for X in at.values():
        men = X[:, 1] == 1.0
        X[men, 2] = 1.0  # every man smokes
    smoker = by_child(learned(at, tmp_path / "run"))["smoker"]
    assert "ratios_ridge" in smoker["codes"]
    of_men = next(one for one in smoker["estimates"] if one["source"] == "sex")
    assert 10 < of_men["interval"][0] < of_men["estimate"] < of_men["interval"][1] < 1e6


@pytest.mark.parametrize(
    "changed",
    [
        lambda X: X[::-1],
        lambda X: np.column_stack([X[:, :1] * 1000 + 1e6, X[:, 1:]]),
    ],
    ids=["rows", "another unit far from zero"],
)
def test_order_and_units_change_no_ratio(
    result: dict[str, Any], tmp_path: Path, changed: Callable[[Matrix], Matrix]
) -> None:
    at = {site: np.ascontiguousarray(changed(X)) for site, X in tables().items()}
    found = by_child(learned(at, tmp_path / "run"))
    for child, one in by_child(result).items():
        for before, after in zip(one["estimates"], found[child]["estimates"], strict=True):
            z = before["log_ratio"] / before["standard_error"]
            assert after["log_ratio"] / after["standard_error"] == pytest.approx(z, rel=1e-6)


def test_summary_page_and_file_have_the_ratios(tmp_path: Path) -> None:
    at = tables()
    at["here"][::5, NAMES.index("age")] = np.nan
    result = learned(at, tmp_path / "run")
    text = StringIO()
    print_summary(result, tmp_path / "run", Console(file=text, width=200), seconds=1.0)
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    with (tmp_path / "run" / "regressions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    told = [(one, estimate) for one in result["regressions"] for estimate in one["estimates"]]
    assert len(rows) == len(told) > 5
    for row, (one, estimate) in zip(rows, told, strict=True):
        assert (row["child"], row["source"], float(row["estimate"])) == (
            one["child"],
            estimate["source"],
            estimate["estimate"],
        )
        assert [float(row["low"]), float(row["high"])] == estimate["interval"]
        shown = f"{estimate['estimate']:.3g}" if one["kind"] == "mean difference" else ratio(estimate["estimate"])
        assert shown in text.getvalue()
        assert f"{shown} <small>" in page
    for one in result["regressions"]:
        assert all(
            note in page and " ".join(note.split()) in " ".join(text.getvalue().split()) for note in one["notes"]
        )


def test_ratios_whose_direction_the_marks_do_not_allow_are_left_out_or_marked(tmp_path: Path) -> None:
    """Smoker and visits have no link; ward acts on no age, the marks say, and so no ratio of ward is one of age."""
    run = tmp_path / "run"
    result = learned(tables(), run)
    edges = [(edge["source"], edge["target"]) for edge in result["edges"]]
    assert {("smoker", "visits"), ("age", "ward")} <= set(edges)
    link = {"mark_source": "circle", "mark_target": "arrow", "says": "", "bootstrap": None}
    links = [dict(zip(("source", "target"), pair, strict=True)) for pair in edges if pair != ("smoker", "visits")]
    for one in links:
        if (one["source"], one["target"]) == ("age", "ward"):
            one |= {"source": "ward", "target": "age"}
    told = {"links": [one | link for one in links], "gone": [["smoker", "visits"]], "untested": [], "legal": True}
    result["hidden_causes"] = told | {"effects": None, "no_path": None}
    (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    excluded = {("visits", "smoker")} | {(f"ward={level}", "age") for level in "bcd"}

    def shown(*, no_hidden_causes: bool) -> tuple[str, set[tuple[str, str]]]:
        text = StringIO()
        console = Console(file=text, width=200)
        print_summary(result, run, console, no_hidden_causes=no_hidden_causes, seconds=1.0)
        table = text.getvalue().split("odds ratios, rate ratios and mean differences: ")[1]
        rows = [line.strip("│").split("│") for line in table.splitlines() if line.startswith("│")]
        return table, {(row[0].split()[0], row[1].split()[0]) for row in rows if not row[0].startswith("     ")}

    table, pairs = shown(no_hidden_causes=False)
    assert "(--no-hidden-causes:" in table
    every = [estimate for one in result["regressions"] for estimate in one["estimates"]]
    assert table.startswith(f"{len(every) - len(excluded)} of {len(every)} ")
    assert not pairs & excluded
    assert pairs | excluded == {(estimate["target"], estimate["source"]) for estimate in every}
    assert shown(no_hidden_causes=True)[1] == pairs | excluded
    page = write_report(run).read_text(encoding="utf-8")
    table = page.split('<table id="regressions"')[1].split("</table>")[0]
    assert table.count("<small>not by the marks") == len(excluded)


def test_children_that_are_numbers_have_mean_differences_in_the_same_table(tmp_path: Path) -> None:
    entries = {"x": {"unit": "kg"}, "sick": {"kind": "binary", "levels": ["no", "yes"]}, "y": {"transform": "log1p"}}
    rng, at = np.random.default_rng(6), {}
    for k, site in enumerate(SITES):
        x = rng.normal(k, 2.0, 500)
        sick = rng.random(500) < 1 / (1 + np.exp(k - x))
        at[site] = np.column_stack([x, sick, 0.02 * x - 0.1 * sick + k + 0.1 * rng.normal(size=500)])
    knowledge = {"required": [["x", "sick"], ["x", "y"], ["sick", "y"]]}
    plan = PLAN.with_settings(dictionary=entries, knowledge=knowledge)
    result = learned(at, tmp_path / "run", plan, ("x", "sick", "y"))
    sick, y = result["regressions"]
    assert (sick["kind"], y["kind"], y["codes"]) == ("odds ratio", "mean difference", ["differences_transformed"])
    rows = np.vstack([np.column_stack([X, np.full(500, k)]) for k, X in enumerate(at.values())])
    fit = sm.OLS(rows[:, 2], np.column_stack([rows[:, :2], rows[:, [3]] == np.arange(3)])).fit()
    order = [("x", "sick").index(one["source"]) for one in y["estimates"]]
    assert [one["estimate"] for one in y["estimates"]] == pytest.approx(fit.params[order], abs=1e-6)
    assert [one["standard_error"] for one in y["estimates"]] == pytest.approx(fit.bse[order], rel=0.01)
    with (tmp_path / "run" / "regressions.csv").open(encoding="utf-8") as file:
        told = [row for row in csv.DictReader(file) if row["child"] == "y"]
    assert [float(row["estimate"]) for row in told] == [one["estimate"] for one in y["estimates"]]
    assert [[float(row["low"]), float(row["high"])] for row in told] == [one["interval"] for one in y["estimates"]]
    text = StringIO()
    print_summary(result, tmp_path / "run", Console(file=text, width=200), seconds=1.0)
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    table = page[page.index('id="regressions"') :]
    for one in y["estimates"]:
        assert f"{signed(one['estimate'], one['interval'])} <small>" in table
    assert "log1p, as the data dictionary transforms it" in text.getvalue()
    assert "log1p, as the data dictionary transforms it" in page


def test_columns_of_the_row_before_are_parents_and_no_children(tmp_path: Path) -> None:
    lagged = Dictionary.model_validate(
        {
            "x": {},
            "sick": {"kind": "binary", "levels": ["no", "yes"]},
            "day": {"kind": "time", "lags": 1},
            "patient": {"kind": "group"},
        }
    )
    names = tuple(column.name for column in lagged.columns())
    rng, at = np.random.default_rng(3), {}
    for site in SITES:
        before = (rng.random(600) < 0.4).astype(np.float64)
        x_before, x = rng.normal(size=(2, 600)) + before
        sick = rng.random(600) < 1 / (1 + np.exp(1 - 2 * before - 0.8 * x))
        columns = {"x": x, "sick": sick, "x@-1": x_before, "sick@-1": before}
        at[site] = np.column_stack([columns[name] for name in names]).astype(np.float64)
    plan = PLAN.with_settings(dictionary=lagged.model_dump(), knowledge={})
    one = by_child(learned(at, tmp_path / "run", plan, names))["sick"]
    assert one["child"] == "sick"
    assert "sick@-1" in {told["source"] for told in one["estimates"]}


def test_order_of_columns_and_sites_changes_no_ratio(result: dict[str, Any], tmp_path: Path) -> None:
    order = [6, 3, 4, 5, 2, 1, 0]
    entries = {name: WARD.model_dump()[name] for name in ("visits", "ward", "smoker", "sex", "age")}
    plan = PLAN.with_settings(dictionary=entries)
    at = {site: X[:, order] for site, X in zip(reversed(SITES), tables().values(), strict=True)}
    found = by_child(learned(at, tmp_path / "run", plan, tuple(NAMES[k] for k in order)))

    def named(one: dict[str, Any]) -> dict[tuple[str, str], float]:
        return {(told["source"], told["target"]): told["log_ratio"] for told in one["estimates"]}

    for child, one in by_child(result).items():
        assert named(found[child]) == pytest.approx(named(one), abs=1e-8)


def test_rows_of_a_group_get_no_ratios_and_the_result_says_so(tmp_path: Path) -> None:
    grouped = {**WARD.model_dump(), "patient": {"kind": "group", "within": "rows"}}
    result = learned(tables(), tmp_path / "run", PLAN.with_settings(dictionary=grouped))
    of_levels = [one for one in result["regressions"] if one["kind"] != "mean difference"]
    assert {one["child"] for one in of_levels} == set(CHILDREN)
    assert all(one["codes"] == ["ratios_groups"] and not one["estimates"] for one in of_levels)


def test_a_family_with_too_many_coefficients_is_left_out_and_named(tmp_path: Path) -> None:
    levels = [f"level {k}" for k in range(21)]
    nominal = {"kind": "nominal", "levels": levels}
    wide = Dictionary.model_validate({"city": nominal, "job": nominal, "x": {}})
    rng = np.random.default_rng(5)
    city = rng.integers(0, 21, (3, 900))
    job = np.where(rng.random(city.shape) < 0.6, city, rng.integers(0, 21, city.shape))
    at = {
        site: np.column_stack([*(c == k for k in range(1, 21)), *(j == k for k in range(1, 21)), rng.normal(size=900)])
        for site, c, j in zip(SITES, city, job, strict=True)
    }
    plan = PLAN.with_settings(dictionary=wide.model_dump(), knowledge={"required": [["city", "job"]]})
    names = tuple(column.name for column in wide.columns())
    result = learned({site: X.astype(np.float64) for site, X in at.items()}, tmp_path / "run", plan, names)
    (one,) = result["regressions"]
    assert (one["child"], one["codes"], one["estimates"]) == ("job", ["ratios_too_wide"], [])


def test_an_ordinal_child_has_the_proportional_odds_of_the_joint_likelihood_with_thresholds_of_each_site(
    tmp_path: Path,
) -> None:
    stages = Dictionary.model_validate({"x": {}, "stage": {"kind": "ordinal", "levels": ["I", "II", "III"]}})
    rng, at = np.random.default_rng(8), {}
    for k, site in enumerate(SITES):
        x = rng.normal(k, 2.0, 400)
        at[site] = np.column_stack([x, np.searchsorted([0.5, 1.0 + k], 0.6 * x + rng.logistic(size=400))]).astype(float)
    at["here"] = at["here"][at["here"][:, 1] != 1.0]  # nobody in stage II
    plan = PLAN.with_settings(dictionary=stages.model_dump(), knowledge={"required": [["x", "stage"]]})
    (one,) = learned(at, tmp_path / "run", plan, ("x", "stage"))["regressions"]

    def negative(parameters: Matrix) -> float:
        total = 0.0
        for k, X in enumerate(at.values()):
            cuts = parameters[[1 + 2 * k, 2 + 2 * k]]
            cuts = cuts[:1] if k == 0 else cuts
            ranks = np.unique(X[:, 1], return_inverse=True)[1]
            up_to = stats.logistic.cdf(np.array([-np.inf, *cuts, np.inf])[:, None] - parameters[0] * X[:, 0])
            total -= np.log(
                np.maximum(up_to[ranks + 1, np.arange(len(X))] - up_to[ranks, np.arange(len(X))], 1e-300)
            ).sum()
        return total

    best = optimize.minimize(negative, [0.0, *([-1.0, 1.0] * 3)], method="BFGS", options={"gtol": 1e-6})
    assert one["codes"][0] == "ratios_ordinal"
    assert one["estimates"][0]["log_ratio"] == pytest.approx(best.x[0], abs=1e-4)
    used, h = [0, 1, 3, 4, 5, 6], 1e-3  # the first site has one threshold

    e = h * np.eye(7)

    def mixed(i: int, j: int) -> float:
        ends = [(one, other, negative(best.x + one * e[i] + other * e[j])) for one in (-1, 1) for other in (-1, 1)]
        return sum(one * other * value for one, other, value in ends) / (4 * h**2)

    error = np.linalg.inv([[mixed(i, j) for j in used] for i in used])[0, 0] ** 0.5
    assert one["estimates"][0]["standard_error"] == pytest.approx(error, rel=0.01)


@pytest.mark.parametrize("constant", [0.1, 0.7, 98.6])
def test_a_parent_that_does_not_vary_at_one_site_ends_no_run_and_is_said_to_be_tested_in_part(
    tmp_path: Path, constant: float
) -> None:
    at = tables()
    at["there"][:, 0] = constant
    found = learned(at, tmp_path / "run")
    assert by_child(found)["smoker"]["estimates"]
    assert any("ratios of" in text and "'smoker'" in text for text in found["verdict"]["not_tested"])
