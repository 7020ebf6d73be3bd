"""What each site's table has lost at most by a private run, for result.json."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl.privacy import zcdp
from fedbnsl.privacy.calibration import price_of
from fedbnsl.privacy.report import guarantee_sentence
from fedbnsl.protocol.messages import Loss


def privacy_loss(
    plan: Plan,
    d: int,
    rows: Mapping[str, int],
    rounds: Sequence[Mapping[str, Any]],
    *,
    paid_rounds: int,
    lost: Sequence[Loss],
    no_guarantee: Iterable[str],
) -> dict[str, Any]:
    """In one sentence and in numbers, for d variables and the `rows` of each site that may have paid.

    Sites may have paid for `paid_rounds`, of which `rounds` are complete. Secure aggregation went on without `lost`
    sites, in order; their rounds were released again by the others. `no_guarantee` says why there is none.
    """
    reasons = list(no_guarantee)
    repeated = sum(one.round > 1 for one in lost)  # keys are not released
    sites: dict[str, Any] = {}
    for site, n in sorted(rows.items()):
        price = price_of(plan, n_samples=n, n_variables=d)
        answered = [entry["round"] for entry in rounds if site in entry["contributed"]]
        given_up = _given_up(site, lost)
        keys = 1 if price.n_honest > 1 else 0  # a round before the setup, which costs nothing
        setups = any(t > keys for t in answered) + given_up.count(keys + 1)  # which are given up with the next round
        paid = sum(map(price.units_of, [*[0] * setups, *answered, *given_up]))
        paid += price.surcharge_of([*answered, *given_up])
        sites[site] = {
            "epsilon": price.epsilon,
            "delta": price.delta,
            "accounting": price.accounting,
            "price_zcdp": zcdp.zcdp_of(price.units),
            "contributed_zcdp": zcdp.zcdp_of(paid),
        }
        if price.n_honest > 1:
            sites[site]["price_zcdp_against_all_others"] = zcdp.zcdp_of(price.share_units)
    return {
        "guarantee": ""
        if reasons
        else guarantee_sentence(plan, d, min(rows.values()), paid_rounds, lost=len(lost), repeated=repeated),
        "no_guarantee_because": reasons,
        "sites_per_person": 1 if plan.privacy is None else plan.privacy.sites_per_person,
        "sites": sites,
    }


def _given_up(site: str, lost: Iterable[Loss]) -> list[int]:
    """The rounds that the site may have answered before they were given up, its own last one among them."""
    rounds: list[int] = []
    for one in lost:
        rounds.append(one.round)
        if one.site == site:
            break
    return rounds
