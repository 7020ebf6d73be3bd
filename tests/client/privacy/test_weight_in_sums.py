"""How much a site counts in secure aggregation is public: it hangs on told rows and the price, on no value of a
table."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import WHOLE_SHARE, price_of
from fedbnsl.privacy.site_shares import site_shares
from fedbnsl.protocol.messages import Membership
from fedbnsl_client.rounds.residual_moments import Rounds

D, ROWS = 4, {"east": 100, "north": 400, "west": 400}


@pytest.mark.parametrize("missing", [0, 50, 100])
def test_missing_values_do_not_change_how_much_a_site_counts_in_a_sum(missing: int) -> None:
    ranges = {f"x{k}": {"range": [0.0, 1.0]} for k in range(D)}
    plan = Plan.load("private", epsilon=3.0).with_settings(dictionary=ranges)
    assert plan.privacy is not None
    price = price_of(plan, n_samples=ROWS["east"], n_variables=D)
    X = np.random.default_rng(1).standard_normal((ROWS["east"], D))
    X[:missing, 0] = np.nan
    problem: Any = SimpleNamespace(
        plan=plan, price=price, X=X, n_samples=ROWS["east"],
        member=SimpleNamespace(site="east"), summed_with=lambda: [Membership(site, n) for site, n in ROWS.items()],
    )  # fmt: skip
    rounds = Rounds.__new__(Rounds)
    rounds.problem = problem
    expected = site_shares(price, list(ROWS.values()), plan.privacy.residual_norm_bound(D))
    assert 0 < expected[0] < WHOLE_SHARE, "its rows matter"
    assert rounds._share(price) == expected[0]
