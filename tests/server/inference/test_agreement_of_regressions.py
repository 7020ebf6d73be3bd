"""The score test of sites that share the coefficients of a regression, against sums by hand."""

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.inference.regressions import Regression, SiteSums, advanced, begun, differing, odd_site


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
    counts = settled(GRADIENTS, INFORMATION, dispersion=free)
    assert counts.q == pytest.approx(plain.q / 3.0)
    np.testing.assert_allclose(counts.site_errors, plain.site_errors * np.sqrt(3.0))
    assert settled(GRADIENTS, INFORMATION, dispersion=free / 6).q == plain.q  # less than Poisson's


def test_without_a_site_the_others_are_compared_at_their_own_coefficients() -> None:
    """Of estimates J^-1 U of the sites, the squares about their mean by J."""
    found = settled(GRADIENTS, INFORMATION)
    for k in range(3):
        J, U = np.delete(INFORMATION, k, axis=0), np.delete(GRADIENTS, k, axis=0)
        mean = np.linalg.solve(J.sum(axis=0), U.sum(axis=0))
        apart = [np.linalg.solve(one, u) - mean for one, u in zip(J, U, strict=True)]
        q = sum(step @ one @ step for one, step in zip(J, apart, strict=True))
        assert found.left_out[k] == pytest.approx([q, 2.0])
    np.testing.assert_allclose(found.site_steps[1], np.linalg.solve(INFORMATION[1], GRADIENTS[1]))
    np.testing.assert_allclose(found.site_errors[1] ** 2, np.linalg.inv(INFORMATION[1]).diagonal())


def test_a_site_tells_no_coefficient_about_which_it_has_too_little_information() -> None:
    found = settled(
        np.array([[3.0, -1.0], [-5.0, 1.0], [2.0, 0.0]]),
        np.stack([np.diag(told) for told in ([90.0, 40.0], [30.0, 4.9], [0.0, 0.0])]),
    )
    assert np.isfinite(found.site_errors).tolist() == [[True, True], [True, False], [False, False]]


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_a_site_that_knows_the_sum_of_two_coefficients_alone_tells_neither_in_any_unit(unit: float) -> None:
    scales = np.array([1.0, unit])
    sum_alone = np.array([[50.0, 49.0], [49.0, 50.0]])  # in units of the scales
    information = np.stack([sum_alone, np.diag([50.0, 50.0])]) * scales * scales[:, None]
    found = settled(np.array([[1.0, 1.0], [-1.0, -1.0]]) * scales, information, scales)
    assert np.isfinite(found.site_errors).tolist() == [[False, False], [True, True]]


FAR = np.array([[20.0], [20.0], [25.0], [-65.0]])


def alike(gradients: Matrix) -> Regression:
    return settled(gradients, np.full((len(gradients), 1, 1), 90.0))


def test_the_site_without_which_the_others_agree_is_named() -> None:
    one, agree = alike(FAR), alike(np.array([[2.0], [-2.0], [1.0], [-1.0]]))
    assert differing([agree, one], 0.01) == [one]
    assert odd_site([agree, one]) == "site 3"
    assert odd_site([agree]) == ""
    assert odd_site([alike(np.array([[50.0], [20.0], [-5.0], [-65.0]]))]) == "", "the others differ, too"
    assert odd_site([one, alike(FAR[[3, 1, 2, 0]])]) == "", "another site in each"
    assert odd_site([alike(np.array([[65.0], [-65.0]]))]) == "", "of two, nobody knows which"
