"""The figures of the plans that end with a search, on few variables and rows: what they compare, and with what."""

import json
import statistics

import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench import generated
from fedbnsl_research.bench import lean as bench_search
from fedbnsl_research.bench.generated import Generated
from fedbnsl_research.private_plans import private_plan_200, steps_alone
from fedbnsl_research.reproduce.private_study_plans import with_privacy
from fedbnsl_research.trials.harness import megabytes_sent, run_plan, run_row
from fedbnsl_workbench.tables.synthetic import synthesise


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr(generated, "N_SAMPLES", 60)


@pytest.fixture
def asked(monkeypatch):
    """What is compared instead of comparing it."""
    seen = []

    def compared(data, before, plans):
        seen.append((data, before, dict(plans)))
        yield from ({"figure": name} for name in plans)

    monkeypatch.setattr(bench_search, "_compared", compared)
    monkeypatch.setattr(bench_search, "_alone", lambda name, data, plan: {"figure": name, "data": data, "plan": plan})
    return seen


def test_a_row_holds_the_numbers_of_both_plans_on_the_same_tables(few_rows):
    before, after = Plan(rounds=4), Plan(rounds=2, refit_rounds=0, moments_rounds=1, value_type="float32")
    data = Generated(5, range(3, 6), n_sites=2, variance=0.2)
    (row,) = bench_search._compared(data, before, {"now": after})
    for label, plan in ((", before", before), ("", after)):
        shds, sent = [], {"serialised": [], "formula": []}
        for seed in (3, 4, 5):
            federation = synthesise(5, 5, 2, 60, seed, weight_variance=0.2)
            result = run_plan(plan, federation)
            shds.append(run_row(result, federation)["shd"])
            for kind, megabytes in sent.items():
                megabytes.append(megabytes_sent(result, kind))
        assert row[f"SHD by seed{label}"] == " ".join(map(str, shds))
        assert row[f"SHD{label}"] == f"{statistics.mean(shds):.2f} +- {statistics.stdev(shds):.2f}"
        for kind, megabytes in sent.items():
            assert row[f"MB {kind}{label}"] == pytest.approx(statistics.mean(megabytes), rel=0.005)
        assert row[f"s a run{label}"] > 0
    ratio = row["MB serialised, before"] / row["MB serialised"]
    assert ratio > 1.5
    assert row["bytes before / bytes"] == pytest.approx(ratio, abs=0.1)
    assert row["figure"] == "now, d=5, P=2, seeds 3..5, heterogeneous 0.2"
    assert json.dumps(row, allow_nan=False)


def test_the_noise_of_a_private_plan_is_that_of_its_graph_s_seed(few_rows, monkeypatch):
    noise, real = [], generated.run_plan

    def noting(plan, federation, *, noise_seed):
        noise.append((plan.name, noise_seed))
        return real(plan, federation, noise_seed=noise_seed)

    monkeypatch.setattr(generated, "run_plan", noting)
    private = Plan.load("private-moments")
    list(bench_search._compared(Generated(5, range(2, 4)), Plan(rounds=1, name="open"), {"private": private}))
    assert noise == [("open", None), ("private-moments", 2), ("open", None), ("private-moments", 3)]


def test_a_private_plan_by_itself_tells_what_a_site_sends_in_a_round(few_rows):
    row = bench_search._alone("many", Generated(5, range(2, 4)), Plan.load("private-moments"))
    numbers = 5 * 6 / 2
    assert 4 * numbers < 1e6 * row["MB a site and round of moments"] < 4 * numbers + 150
    assert row["MB serialised"] > 8 * 4 * 4 * numbers / 1e6
    assert len(row["SHD by seed"].split()) == 2


def test_the_lean_plan_is_set_against_the_default_one_and_so_is_each_of_its_causes(asked):
    rows = list(bench_search.lean())
    default = Plan.load("fed-sparse")
    assert all(before == default for _, before, _ in asked)
    assert [(data.d, [*data.seeds], data.n_sites, data.variance, len(plans)) for data, _, plans in asked] == [
        (20, [*range(2, 12)], 8, 0, 3),
        (100, [2, 3, 4, 5], 8, 0, 1),
        (200, [2, 3], 8, 0, 3),
        (20, [2, 3, 4, 5, 6], 5, 0.1, 1),
    ]
    assert len(rows) == 8
    assert all(plans["lean plan"] == Plan.load("lean") for _, _, plans in asked)

    def changed(plan):
        theirs = default.model_dump()
        return {name: value for name, value in plan.model_dump().items() if value != theirs[name]}

    causes = {name: changed(plan) for name, plan in asked[0][2].items() if name != "lean plan"}
    assert causes == {
        "messages alone": {"value_type": "float32", "send_tolerance": 0.01},
        "search alone": {"refit_rounds": 0, "moments_rounds": 1},
    }


def test_private_moments_are_set_against_the_private_steps_of_the_same_budget(asked):
    *_, many = bench_search.private_moments()
    assert many["data"] == Generated(500, range(2, 4))
    assert many["plan"].privacy.epsilon == 10.0
    assert [(data.d, [*data.seeds], data.n_sites) for data, *_ in asked] == [
        *[(20, [*range(2, 12)], 8)] * 5,
        (200, [2, 3], 8),
        (100, [2, 3, 4, 5], 8),
        (200, [2, 3], 8),
    ]
    moments = Plan.load("private-moments").model_dump()
    for (_, before, plans), epsilon in zip(asked, (0.5, 1, 2, 5, 10, 10, 1, 1), strict=True):
        (plan,) = plans.values()
        assert before.privacy.epsilon == plan.privacy.epsilon == epsilon
        assert plan.model_dump() == {**moments, "privacy": {**moments["privacy"], "epsilon": epsilon}}
    at_200 = [with_privacy(private_plan_200(), epsilon=epsilon) for epsilon in (10.0, 1.0, 1.0)]
    assert [before for _, before, _ in asked] == [*map(steps_alone, (0.5, 1.0, 2.0, 5.0, 10.0)), *at_200]


def test_unequal_noise_is_drawn_for_both_kinds_of_plans(asked):
    list(bench_search.unequal_noise())
    assert [
        (data.noise, before.name, [plan.name for plan in plans.values()]) for data, before, plans in asked[2:4]
    ] == [
        ((0.7, 1.4), "fed-sparse", ["lean"]),
        ((0.7, 1.4), "private-steps", ["private-moments"]),
    ]
    assert str(asked[2][0]) == "d=20, P=8, seeds 2..11, noise sd 0.7 to 1.4"
    assert asked[3][2]["private moments, epsilon 1"].privacy.epsilon == 1.0
