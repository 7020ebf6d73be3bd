"""What each site's table has lost at most by a private run, for result.json."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl.privacy import zcdp
from fedbnsl.privacy.calibration import price_of
from fedbnsl.privacy.report import guarantee_sentence


def privacy_loss(
    plan: Plan,
    d: int,
    rows: Mapping[str, int],
    rounds: Sequence[Mapping[str, Any]],
    *,
    paid_rounds: int,
    lost: int,
    repeated: int,
    no_guarantee: Iterable[str],
) -> dict[str, Any]:
    """In one sentence and in numbers.

    Parameters
    ----------
    d
        Variables.
    rows
        Of each site that may have paid.
    rounds
        The entries of the complete rounds.
    paid_rounds
        For how many rounds sites may have paid.
    lost, repeated
        Sites that secure sums went on without, and how many of their rounds were released again.
    no_guarantee
        Why there is no guarantee; empty: there is one.
    """
    reasons = list(no_guarantee)
    sites: dict[str, Any] = {}
    for site, n in sorted(rows.items()):
        price = price_of(plan, n_samples=n, n_variables=d)
        answered = [entry["round"] for entry in rounds if site in entry["contributed"]]
        keys = 1 if price.n_honest > 1 else 0  # a round before the setup, which costs nothing
        paid = sum(map(price.units_of, [0, *answered])) if any(t > keys for t in answered) else 0
        paid += price.surcharge_of(answered)
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
        else guarantee_sentence(plan, d, min(rows.values()), paid_rounds, lost=lost, repeated=repeated),
        "no_guarantee_because": reasons,
        "sites": sites,
    }
