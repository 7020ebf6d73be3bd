"""The score test of sites that share the coefficients of a regression, against sums by hand."""

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.inference.regressions import Regression, SiteSums, advanced, begun


def settled(
    gradients: Matrix, information: Matrix, scales: Matrix | None = None, dispersion: float = 0.0
) -> Regression:
    """Of sites with 100 rows each, asked at their common maximum: (P, q) gradients that add up to zero."""
    q = gradients.shape[1]
    told = {
        f"site {k}": SiteSums(100, -60.0, U, J, dispersion)
        for k, (U, J) in enumerate(zip(gradients, information, strict=True))
    }
    found = advanced(begun((9,), tuple(range(q)), np.ones(q) if scales is None else scales), told, rounds_left=0)
    assert found.standing == "settled"
    return found


GRADIENTS = np.array([[3.0, -1.0], [-5.0, 2.0], [2.0, -1.0]])
INFORMATION = np.array([[[90.0, 20.0], [20.0, 40.0]], [[30.0, -10.0], [-10.0, 70.0]], [[50.0, 0.0], [0.0, 60.0]]])


def test_each_site_but_one_adds_as_many_degrees_of_freedom_as_there_are_coefficients() -> None:
    found = settled(GRADIENTS, INFORMATION)
    assert found.degrees == pytest.approx(4.0)
    assert found.q == pytest.approx(sum(U @ np.linalg.inv(J) @ U for U, J in zip(GRADIENTS, INFORMATION, strict=True)))


def test_a_coefficient_that_two_of_three_sites_tell_of_adds_one_degree() -> None:
    gradients = np.array([[3.0, -1.0], [-5.0, 1.0], [2.0, 0.0]])
    found = settled(gradients, np.stack([np.diag(told) for told in ([90.0, 40.0], [30.0, 70.0], [50.0, 0.0])]))
    assert found.degrees == pytest.approx(2.0 + 1.0)
    assert found.q == pytest.approx(9 / 90 + 25 / 30 + 4 / 50 + 1 / 40 + 1 / 70)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_a_site_with_information_below_five_of_a_standard_deviation_is_not_tested(scale: float) -> None:
    def with_third(information: float) -> Regression:
        J = np.array([90.0, 30.0, information]) * scale**2
        return settled(np.array([[3.0], [-5.0], [2.0]]) * scale, J[:, None, None], np.array([scale]))

    below, above = with_third(4.9), with_third(5.1)
    assert below.q == pytest.approx(9 / 90 + 25 / 30)
    assert below.degrees == pytest.approx(2.0 - 120.0 / 124.9)  # a third site moves the common coefficient
    assert above.q == pytest.approx(9 / 90 + 25 / 30 + 4 / 5.1)
    assert above.degrees == pytest.approx(2.0)


def test_counts_that_vary_three_times_as_much_as_poissons_differ_by_a_third() -> None:
    plain = settled(GRADIENTS, INFORMATION)
    free = 3 * 100 - 3 - 2
    assert settled(GRADIENTS, INFORMATION, dispersion=free).q == pytest.approx(plain.q / 3.0)
    assert settled(GRADIENTS, INFORMATION, dispersion=free / 6).q == plain.q  # less than Poisson's
