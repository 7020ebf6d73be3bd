"""The private studies, on tables small enough for a test; their prices at the size that the paper has."""

import csv
import io
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm

from fedbnsl.privacy.calibration import LATTICE, price_of
from fedbnsl_research.reproduce import dimension, dp_variants, privacy_utility, private_runs, smoothness
from fedbnsl_research.reproduce.study import reproduce
from fedbnsl_workbench.pages.chart_files import new_figure
from fedbnsl_workbench.tables.synthetic import synthesise

MODULES = [privacy_utility, dimension, smoothness, dp_variants]
ROWS, DELTA = 5000, 1.0 / 5000**2


@pytest.fixture
def tiny(monkeypatch):
    """Networks of five variables and few rows, whatever is asked for, and short plans; notes what was run."""
    ran, real = [], private_runs.run_plan

    def small(d, edges, n_sites, n, seed):
        assert (d, n_sites, n) == (edges, 8, ROWS)
        return SimpleNamespace(asked=(d, seed), real=synthesise(5, 5, 2, 300, seed))

    def short(plan, federation, *, noise_seed):
        ran.append((plan, *federation.asked, noise_seed))
        return real(plan.with_settings(rounds=2, local_steps=3), federation.real, noise_seed=noise_seed)

    monkeypatch.setattr(private_runs, "synthesise", small)
    monkeypatch.setattr(private_runs, "run_plan", short)
    row = private_runs.run_row
    monkeypatch.setattr(private_runs, "run_row", lambda result, federation: row(result, federation.real))
    return ran


def quiet():
    return Console(file=io.StringIO())


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.STUDY.name)
def test_a_study_runs_every_trial_once_and_goes_on_where_it_was_left(module, tiny, tmp_path):
    study, quick = module.STUDY, module is not dimension  # whose comparison with the paper is about d = 200 alone
    undrawn = replace(study, draw=lambda rows: new_figure(2, 2)[0])
    reproduce(undrawn, (2,), tmp_path, quick=quick, jobs=1, console=quiet())
    once = len(tiny)
    comparisons = reproduce(study, (2, 3), tmp_path, quick=quick, jobs=1, console=quiet())
    assert len(tiny) == 2 * once == len(study.trials((2, 3), quick))
    assert [seed for _, _, seed, _ in tiny] == [2] * once + [3] * once
    assert all(noise_seed == (seed if plan.privacy else None) for plan, _, seed, noise_seed in tiny)
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert len(rows) == 2 * once
    some = next(row for row in rows if row["accounted"] == "epsilon does not cover the second moments")
    setting = {key: some[key] for key in ("method", "d", "epsilon", "share") if key in some}
    mine = [float(row["shd"]) for row in rows if setting.items() <= row.items()]
    assert len(mine) == 2
    said = [c.ours for c in comparisons if some["method"] in c.what and c.what.endswith("SHD")]
    assert any(mean == pytest.approx(np.mean(mine)) for mean in said)
    page = (tmp_path / "index.html").read_text()
    assert "does not cover the second moments" in page or "not charged" in page
    assert (tmp_path / f"{study.name}.png").stat().st_size > 10_000


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.STUDY.name)
def test_the_page_shows_the_settings_of_the_plans_that_run_and_quick_runs_a_part_of_them(module):
    study = module.STUDY
    full, quick = (study.trials((2, 3), quick) for quick in (False, True))
    assert all(trial in full for trial in quick)
    assert len(quick) < len(full)
    for trials, shown in ((full, study.settings(False)), (quick, study.settings(True))):
        used = [private_runs.settings_of(module.plan_of(trial)) for trial in trials]
        assert all(any(s.values == values for s in shown) for values in used)
        assert all(any(s.values == values for values in used) for s in shown)


def every_plan():
    """Each private plan of a study once, with its number of variables and its epsilon."""
    for module in MODULES:
        for trial in module.STUDY.trials((2,), False):
            plan = module.plan_of(trial)
            if plan.privacy is not None:
                epsilon = trial.get("epsilon", 10.0 if "d" in trial else 5.0)
                yield pytest.param(plan, trial.get("d", 20), epsilon, id=f"{module.STUDY.name}-{trial}")


@pytest.mark.parametrize(("plan", "d", "epsilon"), list(every_plan()))
def test_the_noise_of_every_plan_spends_its_epsilon_and_no_more(plan, d, epsilon):
    """Epsilon anew from the scales of the noise alone, by formulas without the accountant."""
    price = price_of(plan, n_samples=ROWS, n_variables=d)
    assert (price.epsilon, price.delta) == (epsilon, DELTA)
    if plan.local_solver == "noisy-covariance":
        multiplier = math.sqrt(price.setup_variance) / (math.sqrt(2) * LATTICE)
        spent = epsilon_of_one_gaussian(multiplier)
    elif plan.local_solver == "dp-pgcd-laplace":
        each = [2.0 * price.sharpness, 2.0 * LATTICE / price.update_scale]
        times = plan.rounds * plan.local_steps
        spent = math.sqrt(2 * math.log(1 / DELTA) * times * sum(e * e for e in each))
        spent += times * sum(e * (math.exp(e) - 1) for e in each)
    else:
        step = price.sharpness**2 / 2 + (2 * LATTICE) ** 2 / (2 * price.update_variance)
        setup = d * LATTICE**2 / (2 * price.setup_variance) if plan.privacy.smoothness == "estimated" else 0.0
        steps = plan.rounds * plan.local_steps
        spent = epsilon_of_zcdp(steps * step + setup)
        if price.gaussian:
            v = price.sharpness**2 / 2 / step  # the selection's part of a step
            excess = max(0.0, 3 * v - 1)
            for k in range(1, steps + 1):
                excess += v * v / (k - 2 * v + excess)
            spent = epsilon_of_one_gaussian(1 / math.sqrt(2 * ((steps + excess) * step + setup)))
    assert 0.995 * epsilon <= spent <= epsilon * (1 + 1e-4)


def epsilon_of_zcdp(zcdp):
    """The least bound over many orders."""
    a = 1.0 + np.geomspace(1e-2, 1e4, 200_000)
    return float(np.min(zcdp * a + np.log(1 / (a * DELTA)) / (a - 1) + np.log(1 - 1 / a)))


def epsilon_of_one_gaussian(multiplier):
    """The least epsilon on a fine grid whose delta, by the two tails, is small enough."""
    epsilons = np.geomspace(0.1, 100.0, 200_000)
    delta = norm.cdf(0.5 / multiplier - epsilons * multiplier)
    delta -= np.exp(epsilons + norm.logcdf(-0.5 / multiplier - epsilons * multiplier))
    return float(epsilons[delta <= DELTA][0])


@pytest.mark.parametrize("share", smoothness.SHARES)
def test_a_share_of_epsilon_buys_the_second_moments_what_it_would_buy_alone(share):
    plan = smoothness.plan_of({"share": share, "seed": 2})
    price = price_of(plan, n_samples=ROWS, n_variables=20)
    alone = epsilon_of_one_gaussian(math.sqrt(price.setup_variance / (20 * LATTICE**2)))
    assert 0.985 * 5 * share <= alone <= 5 * share, "shares were computed by zCDP, where it is 5 share exactly"


def test_what_epsilon_covers_is_said_of_every_plan():
    for module, exact in ((privacy_utility, privacy_utility.EXACT), (dimension, dimension.EXACT)):
        for trial in module.STUDY.trials((2,), False):
            plan = module.plan_of(trial)
            said = private_runs.accounted(plan)
            if trial["method"] in (exact, privacy_utility.PAPER):
                assert said == "epsilon does not cover the second moments"
            elif plan.privacy is not None:
                assert said == "epsilon covers all that is sent"
                assert plan.local_solver == "noisy-covariance" or plan.privacy.smoothness == "estimated"
