"""The privacy cost of a run at a site in words and numbers, and how large the noise is in the units of the data."""

import math
from typing import Any

from fedbnsl.errors import PlanError
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.privacy import gaussian_dp, zcdp
from fedbnsl.privacy.calibration import LATTICE, Price, n_residuals, price_of
from fedbnsl.rounds.residual_moments import squared


def price_summary(plan: Plan, *, n_samples: int, n_variables: int, runs: int = 1) -> dict[str, Any]:
    """What `fedbnsl privacy price --json` prints, of one run and of several; raises PlanError as `price_of`."""
    price = price_of(plan, n_samples=n_samples, n_variables=n_variables)
    privacy = plan.privacy
    assert privacy is not None  # noqa: S101  # price_of has refused otherwise
    total = zcdp.zcdp_of(price.units)
    return {
        "solver": plan.local_solver,
        "rows": n_samples,
        "variables": n_variables,
        "rounds": plan.rounds,
        "local_steps": price.local_steps,
        "moments_rounds": price.moments_rounds,
        "residuals": n_residuals(plan, n_variables),
        "squares": _n_squares(plan, n_variables),
        "no_curves_as_absent": plan.look_for_curves and bool(plan.absent),
        "plan": {"epsilon": price.epsilon, "delta": price.delta},
        "zcdp": {
            "total": total,
            "setup": zcdp.zcdp_of(price.setup_units),
            "round": zcdp.zcdp_of(price.round_units),
            "moments_round": zcdp.zcdp_of(price.moments_units),
            "surcharge": zcdp.zcdp_of(price.surcharge_units),
        },
        "accounting": price.accounting,
        "noise_relative_to_zcdp": noise_relative_to_zcdp(price),
        "epsilon": _epsilon(price, price.units),
        "epsilon_by_zcdp": zcdp.epsilon_of(total, price.delta),
        **_shared(price, plan, runs=runs),
        "epsilon_as_in_the_paper": zcdp.epsilon_as_in_the_paper(total, price.delta),
        "guarantee": guarantees(plan),
        "sites_per_person": price.sites_per_person,
        "epsilon_per_person": _by_sites(price),
        "sites": plan.n_participants,
        "against": adversary(price, plan.n_participants),
        "right_guess": _right_guess(price, price.person_units),
        "right_guess_after_runs": _right_guess(price, runs * price.person_units),
        "runs": runs,
        "epsilon_after_runs": _by_sites(price, runs=runs),
        **({"record": _record_of(plan)} if plan.dictionary.rows.group else {}),
        "noise": noise_scales(plan, privacy, price),
    }


def _shared(price: Price, plan: Plan, *, runs: int) -> dict[str, Any]:
    """Of a run with secure aggregation: what is different from one without."""
    if plan.privacy is None or price.n_honest == 1:
        return {}
    n_sites, settings = plan.n_participants, plan.privacy.model_dump()
    without = plan.with_settings(privacy={**settings, "secure_aggregation": False, "colluding": 0})
    alone = price_of(without, n_samples=price.n_samples, n_variables=price.n_variables)
    return {
        "secure_aggregation": {
            "sites": n_sites,
            "colluding": n_sites - price.n_honest,
            "retries": price.retries,
            "zcdp_of_retries": zcdp.zcdp_of(price.reserve),
            "epsilon_against_all_others": epsilon_of_share(price),
            "epsilon_of_person_against_all_others": _epsilon(price, price.sites_per_person * price.share_units),
            "right_guess_after_runs": _right_guess(price, runs * price.sites_per_person * price.share_units),
            "zcdp_against_all_others": zcdp.zcdp_of(price.share_units),
            "noise_of_the_sum_without": math.sqrt(alone.moments_variance / price.moments_variance),
            "epsilon_per_person_without": _by_sites(alone),
        }
    }


def _by_sites(price: Price, *, runs: int = 1) -> dict[str, float]:
    """Epsilon for a person who has a record at 1, 2 and 3 sites, and at as many as the plan says."""
    sites = sorted({1, 2, 3, price.sites_per_person})
    return {str(k): _epsilon(price, runs * price.units_at(k)) for k in sites}


def _right_guess(price: Price, units: int) -> float | None:
    """How often a guess at most is right which of two equally likely versions of a person's records was used.

    Phi(mu / 2), where every release is Gaussian: the best test between N(0, 1) and N(mu, 1). None: not known so well.
    """
    mu = math.sqrt(2.0 * zcdp.zcdp_of(units))
    return 0.5 * math.erfc(-mu / math.sqrt(8.0)) if price.gaussian else None


def epsilon_at(price: Price, n_sites: int) -> float:
    """Epsilon of a run for a person who has a record at each of so many sites, which pay as much as this one."""
    return _epsilon(price, price.units_at(n_sites))


def adversary(price: Price, n_sites: int) -> str:
    """Against whom the epsilon of a run over so many sites holds."""
    if price.n_honest == 1:
        return "the coordinator and all other sites"
    t = n_sites - price.n_honest
    return f"the coordinator together with any {t} other site{'' if t == 1 else 's'}" if t else "the coordinator alone"


def noise_relative_to_zcdp(price: Price) -> float:
    """Standard deviations of the noise, as a share of what they would be if the plan were counted as zCDP.

    Of a plan with private steps: the noise of its steps, which pay the surcharge for their selections.
    """
    if not price.gaussian:
        return 1.0
    budgets = zcdp.budget(price.epsilon, price.delta), gaussian_dp.budget(price.epsilon, price.delta)
    of_steps = price.rounds * price.round_units
    surcharge = price.surcharge_units / of_steps if of_steps else 0.0
    return math.sqrt(budgets[0] / budgets[1] * (1.0 + surcharge))


def guarantees(plan: Plan) -> bool:
    """Whether a private plan gives a guarantee. Exact second moments are not charged, so they give none."""
    exact = plan.privacy is not None and plan.privacy.smoothness == "exact"
    return plan.local_solver == "noisy-covariance" or not exact


def guarantee_sentence(
    plan: Plan, n_variables: int, fewest_samples: int, rounds: int, *, lost: int = 0, repeated: int = 0
) -> str:
    """What a private run guarantees, for people.

    `rounds` is the most that any site answered, including those of residual moments; `fewest_samples` the rows of the
    smallest site: without a delta in the plan, its delta is the largest. Secure aggregation went on without the `lost`
    sites, and `repeated` of their rounds were released again.
    """
    privacy = plan.privacy
    if privacy is None or not guarantees(plan):
        raise PlanError("the plan gives no privacy guarantee")
    price = price_of(plan, n_samples=fewest_samples, n_variables=n_variables)
    if price.n_honest > 1:
        rounds -= 1  # of keys
    if rounds <= 0:
        return "No answer of a site was used."
    delta = f"delta = {price.delta:.3g}" + ("" if privacy.delta else " or less (1 / rows^2 of each site)")
    if plan.local_solver == "noisy-covariance":
        releases = "its noisy second moments, released once"
    else:
        before = 0 if plan.preparation is None else 1
        admm_rounds = max(min(rounds - before, plan.rounds), 0)
        parts = [f"{n_variables} noisy second moments"] if privacy.smoothness == "estimated" else []
        if plan.preparation is not None:
            parts = [f"the noisy number of its complete rows, noisy means and variances of its {n_variables} columns"]
        if admm_rounds:
            parts.append(
                f"at most {admm_rounds} rounds x {plan.local_steps} steps, each one selected coordinate and its noisy "
                "gradient"
            )
        if rounds > plan.rounds + 1:
            parts.append(f"the noisy moments of its residuals at most {rounds - plan.rounds - 1} times")
        if repeated:
            parts.append(f"{repeated} of these releases again, with fresh noise, as {_sites(repeated)} lost")
        releases = ", and ".join(parts)
    k, group = price.sites_per_person, plan.dictionary.rows.group
    unit, who = ("one record", "the site") if k == 1 else (f"one record at each of up to {k} sites", "each of them")
    sentence = (
        f"Every site's table is protected by (epsilon = {privacy.epsilon:g}, {delta}) differential privacy under "
        f"replacement of {unit}, over everything that {who} released in this run: {releases}."
    )
    sentence += f" A record is {_record_of(plan)}." if group else " A record is a row."
    sentence += _of_persons(price, plan.n_participants)
    return f"{sentence} {_of_sums(price, plan.n_participants, lost)}" if price.n_honest > 1 else sentence


def _record_of(plan: Plan) -> str:
    """What a record is where rows belong together."""
    group, by_rows = plan.dictionary.rows.group, plan.counts_rows_of_persons
    rows = f"all rows of a site with the same {group!r}"
    what = f"what {rows} tell on average" if by_rows else f"the mean of {rows}"
    return f"{what}, which are protected together"


def _of_persons(price: Price, n_sites: int) -> str:
    """At how many sites a person may have a record, and what holds for others."""
    k = price.sites_per_person
    others = [] if k == 1 else [f"with a single record, epsilon is {epsilon_at(price, 1):.4g}"]
    if k < n_sites:
        others.append(f"with a record at {k + 1} sites, epsilon is {epsilon_at(price, k + 1):.4g}")
    if not others:
        return ""
    sites = "one site" if k == 1 else f"{k} sites"
    return (
        f" The plan takes it that nobody has a record at more than {sites} (sites_per_person = {k}): for a person "
        f"{'; '.join(others)} at the same delta."
    )


def _of_sums(price: Price, n_sites: int, lost: int) -> str:
    """Against whom the guarantee of a run with secure aggregation holds."""
    others = n_sites - price.n_honest - lost
    seen = f"sums over all {n_sites} sites only" + (
        f", and over the other {n_sites - lost} once {_sites(lost)} lost" if lost else ""
    )
    k = price.sites_per_person
    rest, of_rest = "other sites" if k == 1 else "sites but those of the person", _epsilon(price, k * price.share_units)
    among = "those that a site has not confirmed" + ("" if lost else " and those that are lost during the run")
    together = f" together with any {others} other site{'' if others == 1 else 's'}, {among} among them"
    return (
        f"The coordinator sees {seen}. The guarantee holds against it{together if others else ' alone'}; against it "
        f"and all {rest} together, epsilon is {of_rest:.4g} at the same delta."
    )


def _sites(n: int) -> str:
    return "a site was" if n == 1 else f"{n} sites were"


def epsilon_of_share(price: Price) -> float:
    """Epsilon of a run with secure aggregation against all others together: the site's own noise alone."""
    return _epsilon(price, price.share_units)


def _epsilon(price: Price, units: int) -> float:
    epsilon_of = gaussian_dp.epsilon_of if price.gaussian else zcdp.epsilon_of
    return epsilon_of(zcdp.zcdp_of(units), price.delta)


def noise_scales(plan: Plan, privacy: Privacy, price: Price) -> dict[str, dict[str, float]]:
    """Noise by mechanism: multiples of the sensitivity, and standard deviations in the units of the data.

    Row i of the gradient is clipped at C_i = C sqrt(M_i / sum M), which depends on M; the numbers are for equal M, so
    that C_i = C / sqrt(d).
    """
    n, d = price.n_samples, price.n_variables
    scales: dict[str, dict[str, float]] = {}
    std, by_units = math.sqrt(price.setup_variance) / LATTICE, math.sqrt(2.0 * zcdp.zcdp_of(price.setup_units))
    if plan.local_solver == "noisy-covariance":
        bound = privacy.row_norm_bound**2
        return {"covariance": {"noise_multiplier": 1.0 / by_units, "noise_std": std / n * bound}}
    if price.setup_variance and plan.preparation is not None:
        share = price.setup_units / price.units
        scales["statistics"] = {"noise_multiplier": 1.0 / by_units, "noise_std": std / n, "share_of_budget": share}
    elif price.setup_variance:
        multiplier, largest = math.sqrt(price.setup_variance / d) / LATTICE, max(privacy.feature_bounds)
        scales["second_moments"] = {"noise_multiplier": multiplier, "noise_std": std * largest / n}
    if price.moments_variance:
        scales["residual_moments"] = _of_residuals(plan, privacy, price)
        if n_squares := _n_squares(plan, d):
            wide = price_of(plan, n_samples=n, n_variables=d, n_squares=n_squares)
            scales["residual_moments_with_squares"] = _of_residuals(plan, privacy, wide)
    if not plan.rounds:
        return scales
    clip = privacy.clip / math.sqrt(d)
    std = math.sqrt(price.update_variance or 2 * price.update_scale**2)  # Gaussian, or Laplace
    scales["update"] = {"noise_multiplier": std / (2 * LATTICE), "clip": clip, "noise_std": std / LATTICE * clip / n}
    # Among d (d - 1) coordinates, one is picked half of the time if it leads by this many sensitivities.
    lead = math.log(d * (d - 1)) / price.sharpness
    scales["selection"] = {
        "sharpness": price.sharpness,
        "lead_for_even_odds": lead,
        "lead_as_share_of_largest_score": lead / (n / 2.0),
    }
    return scales


def _of_residuals(plan: Plan, privacy: Privacy, price: Price) -> dict[str, float]:
    d, std = price.n_variables, math.sqrt(price.moments_variance)
    return {
        "noise_multiplier": std / (math.sqrt(2.0) * LATTICE + n_residuals(plan, d)),
        "noise_std": std / math.sqrt(2.0) / LATTICE / price.n_samples * privacy.residual_norm_bound(d) ** 2,
    }


def _n_squares(plan: Plan, n_variables: int) -> int:
    """Columns whose squares the coordinator may ask for."""
    if not plan.may_ask_for_squares:
        return 0
    names = [column.name for column in plan.require_ranges(n_variables)]
    return len(squared(plan, plan.columns(names)))


def _products(n_residuals: int) -> int:
    return n_residuals * (n_residuals + 1) // 2


def price_lines(summary: dict[str, Any]) -> list[str]:
    """The summary as lines of text."""
    plan, cost, noise = summary["plan"], summary["zcdp"], summary["noise"]
    rounds, releases, d = summary["rounds"], summary["moments_rounds"], summary["variables"]
    k = summary["sites_per_person"]
    here = " for a record here" if k > 1 else ""
    lines = [
        f"solver        {summary['solver']}, {rounds} rounds"
        + (f" of {summary['local_steps']} steps" if summary["local_steps"] else "")
        if rounds
        else "solver        none: the plan has no ADMM rounds",
        f"site          {summary['rows']} rows, {summary['variables']} variables; one of {summary['sites']} in the run "
        "(the plan's n_participants)",
        f"the plan asks epsilon {plan['epsilon']:g}, delta {plan['delta']:.3g}, for {_unit_of(summary)}, against "
        f"{summary['against']}; all epsilons below are at this delta and against them, where no other is named",
        *([f"record        {summary['record']}"] if "record" in summary else []),
        f"total         {cost['total']:.6g} zCDP{here}: {cost['setup']:.4g} once"
        + (f", {rounds} x {cost['round']:.4g}" if rounds else "")
        + (f", {releases} x {cost['moments_round']:.4g}" if releases else "")
        + (f", {cost['surcharge']:.4g} as the surcharge of selections" if cost["surcharge"] else ""),
    ]
    sums = summary.get("secure_aggregation", {})
    if sums.get("retries"):
        sites = "1 site" if sums["retries"] == 1 else f"{sums['retries']} sites"
        kept = f"              and {sums['zcdp_of_retries']:.4g} kept for rounds"
        lines.append(f"{kept} that are asked again if the run loses {sites}")
    lines += [
        _accounting(summary),
        f"epsilon       {summary['epsilon']:.4g}{here} by the optimal conversion, "
        f"{summary['epsilon_as_in_the_paper']:.4g} by the paper's",
        *_person_lines(summary),
    ]
    of_person = (
        [
            f"              and for somebody with a record at {k} sites, if all but these collude: epsilon "
            f"{sums['epsilon_of_person_against_all_others']:.4g}"
        ]
        if sums and k > 1
        else []
    )
    if sums:
        lines += [
            f"secure aggregation    the coordinator sees sums over {sums['sites']} sites only; this epsilon holds "
            f"against it together with any {sums['colluding']} of them, lost ones among them",
            f"              against it and all other sites together: epsilon {sums['epsilon_against_all_others']:.4g} "
            f"({sums['zcdp_against_all_others']:.6g} zCDP), by this site's part of the noise alone{here and ','}{here}",
            *of_person,
            f"              the noise of a sum would be {sums['noise_of_the_sum_without']:.3g} times as large without",
        ]
    if releases:
        lines.append(
            f"moments       {releases} times the site releases noisy second moments of residuals, "
            f"{_products(summary['residuals'])} numbers"
            + (
                f" ({_products(summary['residuals'] + summary['squares'])} with squares of numbers, if over all sites "
                "the noise is small)"
                if summary["squares"]
                else ""
            )
            + f", each time for {cost['moments_round']:.4g} zCDP; the noisy "
            f"{'statistics' if 'statistics' in noise else 'mean squares'}, paid for once, set their scales"
        )
    if summary["no_curves_as_absent"]:
        lines.append("curves        not looked for, as sites lack columns ([absent]): an effect such as a U is missed")
    if "statistics" in noise:
        of = noise["statistics"]
        lines.append(
            f"statistics    once: the noisy number of complete rows, means and variances of {d} columns, for "
            f"{of['share_of_budget']:.1%} of the privacy cost; the site takes off these means, never its exact ones"
        )
        lines.append(
            f"              noise of a mean {of['noise_std']:.2%} of half the variable's range; a standard deviation "
            f"below {math.sqrt(of['noise_std']):.1%} of it cannot be told at this site alone"
        )
    if not summary["guarantee"]:
        lines.insert(0, "NO GUARANTEE  smoothness = 'exact' uses the data without paying: for public data only")
    for name, title, unit in (
        ("covariance", "covariance", "squared units, an entry of the diagonal"),
        ("second_moments", "2nd moments", "squared units of the variable with the largest bound"),
        ("residual_moments", "residuals", "squared scales, an entry off the diagonal"),
        ("residual_moments_with_squares", "with squares", "squared scales, an entry off the diagonal"),
        ("update", "update", "units of the gradient, at equal second moments"),
    ):
        if name in noise:
            scale = noise[name]
            clip = f", clipped at {scale['clip']:.4g}" if "clip" in scale else ""
            size = f"{scale['noise_multiplier']:.4g} x sensitivity = {scale['noise_std']:.4g}"
            lines.append(f"{title:13} noise {size} {unit}{clip}")
    if "selection" in noise:
        scale = noise["selection"]
        lines.append(
            f"selection     exp({scale['sharpness']:.4g} x score / sensitivity); one coordinate is picked half the "
            f"time if its score leads by {100 * scale['lead_as_share_of_largest_score']:.3g} % of the largest possible"
        )
    return lines


def _unit_of(summary: dict[str, Any]) -> str:
    k = summary["sites_per_person"]
    return "one replaced record of the table" if k == 1 else f"one replaced record at each of up to {k} sites"


def _person_lines(summary: dict[str, Any]) -> list[str]:
    """A table: epsilon for a person at 1, 2 and 3 sites, at the same delta."""
    without: dict[str, float] = summary.get("secure_aggregation", {}).get("epsilon_per_person_without", {})
    lines: list[str] = []
    for k, epsilon in summary["epsilon_per_person"].items():
        where = f"at {k} site" + ("" if k == "1" else "s")
        agreed = ", as the plan says" if int(k) == summary["sites_per_person"] else ""
        alone = f" ({without[k]:.4g} without secure aggregation)" if without else ""
        lines.append(f"{'' if lines else 'per person':13} {where}{agreed}: epsilon {epsilon:.4g}{alone}")
    if summary["runs"] > 1:
        after = (f"{epsilon:.4g} at {k}" for k, epsilon in summary["epsilon_after_runs"].items())
        lines.append(f"{'':13} after {summary['runs']} such runs of the same tables: epsilon {', '.join(after)} sites")
    if summary["right_guess"] is not None:
        after, sums = summary["right_guess_after_runs"], summary.get("secure_aggregation")
        runs = f" in {summary['runs']} runs" if summary["runs"] > 1 else ""
        lines.append(
            f"{'':13} who knows all but two equally likely versions of a person's records, and all that "
            f"{summary['against']} see of a run, guesses the true one at most {summary['right_guess']:.1%} of the time"
            + f"; {after:.1%}{runs}" * bool(runs)
            + (f"; together with all other sites {sums['right_guess_after_runs']:.1%}{runs}" if sums else "")
        )
    return lines


def _accounting(summary: dict[str, Any]) -> str:
    if summary["accounting"] == "zCDP":
        few = "so few steps need less noise by it than by Gaussian differential privacy"
        return f"accounting    zCDP: {few if summary['solver'] == 'dp-pgcd' else 'not every release is Gaussian'}"
    share = summary["noise_relative_to_zcdp"]
    mu = math.sqrt(2.0 * summary["zcdp"]["total"])
    selections = " or a selection, for which the surcharge is paid" if summary["zcdp"]["surcharge"] else ""
    return (
        f"accounting    Gaussian differential privacy (mu = {mu:.4g}), as every release is Gaussian{selections}: "
        f"{share:.3f} times the noise that zCDP would ask for; counted as zCDP it is epsilon "
        f"{summary['epsilon_by_zcdp']:.4g}"
    )
