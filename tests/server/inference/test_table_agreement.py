"""Whether sites have the same shares of levels: Pearson's chi-square of their tables."""

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency

from fedbnsl_server.inference.table_agreement import agreement_of


def test_statistics_of_combinations_add_up() -> None:
    n = np.random.default_rng(0).integers(20, 60, (3, 2, 4)).astype(float)  # sites, combinations, levels

    q, degrees = agreement_of(list(n))

    expected = [chi2_contingency(n[:, k], correction=False) for k in range(2)]
    assert q == pytest.approx(sum(one.statistic for one in expected))
    assert degrees == sum(one.dof for one in expected) == 12


def test_few_records_raise_no_more_alarms_than_their_level() -> None:
    rng, shares = np.random.default_rng(1), np.array([[0.9, 0.06, 0.03, 0.01], [0.4, 0.3, 0.29, 0.01]])
    p = []
    for _ in range(400):
        sizes = rng.integers(5, 60, (6, 2))
        told = [
            np.array([rng.multinomial(sizes[site, k], shares[k]) for k in range(2)], dtype=float) for site in range(6)
        ]
        q, degrees = agreement_of(told)
        p.append(chi2.sf(q, degrees))

    assert np.mean(np.array(p) < 0.05) < 0.09


def test_without_records_enough_nothing_is_told() -> None:
    one = np.array([[2.0, 0.0], [0.0, 1.0]])

    assert agreement_of([one, one[::-1]]).degrees == 0


@pytest.mark.parametrize(("expected", "degrees"), [(2.0, 0), (3.0, 1)])
def test_fewer_records_than_three_are_expected_in_no_cell(expected: float, degrees: int) -> None:
    told = np.array([[40.0, expected]])

    assert agreement_of([told, told]).degrees == degrees


def test_rare_levels_are_merged_and_then_sites_with_few_records_left_out() -> None:
    """Of (70, 2, 3), (60, 2, 3) and (4, 0, 0) the last two levels become one, and the third site is left out."""
    n = np.array([[70.0, 2.0, 3.0], [60.0, 2.0, 3.0], [4.0, 0.0, 0.0]])

    q, degrees = agreement_of([row[None] for row in n])

    expected = chi2_contingency([[70.0, 5.0], [60.0, 5.0]], correction=False)
    assert (q, degrees) == (pytest.approx(expected.statistic), expected.dof)
