"""What is drawn has the law that was paid for."""

import pytest

from audit import samplers
from fedbnsl_client.privacy import noise


@pytest.mark.parametrize("variance", [1, 2, 5, 40, 1000])
def test_discrete_gaussian_has_its_law(variance: int) -> None:
    samplers.check_gaussian(noise.discrete_gaussian, variance)


@pytest.mark.parametrize("variance", [1, 2, 4, 5, 40, 1000])
def test_rounded_gaussian_has_its_law(variance: int) -> None:
    samplers.check_rounded_gaussian(noise.rounded_gaussian, variance)


@pytest.mark.parametrize("sigma", [10**6, 2**40, 10**30])
def test_a_wide_rounded_gaussian_is_normal(sigma: int) -> None:
    samplers.check_wide_gaussian(noise.rounded_gaussian, sigma)


@pytest.mark.parametrize("scale", [1, 2, 7, 100])
def test_discrete_laplace_has_its_law(scale: int) -> None:
    samplers.check_laplace(noise.discrete_laplace, scale)


@pytest.mark.parametrize(("numerator", "denominator"), [(1, 3), (1, 1), (7, 3), (2**90, 2**91)])
def test_bernoulli_exp_has_its_chance(numerator: int, denominator: int) -> None:
    samplers.check_bernoulli(noise.bernoulli_exp, numerator, denominator)


@pytest.mark.parametrize("sharpness", [0.05, 0.4, 2.0])
def test_the_exponential_mechanism_draws_from_the_softmax(sharpness: float) -> None:
    samplers.check_softmax(noise.ExponentialMechanism, sharpness)


def test_the_integer_weights_are_exponentials_within_the_accountants_allowance() -> None:
    samplers.check_weights(noise.ExponentialMechanism)


def test_noisy_max_wins_as_often_as_the_convolution_says() -> None:
    samplers.check_noisy_max(noise.NoisyMax)


@pytest.mark.audit
@pytest.mark.parametrize("variance", [1, 3, 17, 400, 10_000])
def test_a_great_many_gaussian_draws_have_their_law(variance: int) -> None:
    samplers.check_gaussian(noise.discrete_gaussian, variance, 400_000)


@pytest.mark.audit
@pytest.mark.parametrize("variance", [1, 3, 17, 400, 10_000])
def test_a_great_many_rounded_gaussian_draws_have_their_law(variance: int) -> None:
    samplers.check_rounded_gaussian(noise.rounded_gaussian, variance, 400_000)


@pytest.mark.audit
@pytest.mark.parametrize("sigma", [10**6, 2**70])
def test_a_great_many_wide_gaussian_draws_are_normal(sigma: int) -> None:
    samplers.check_wide_gaussian(noise.rounded_gaussian, sigma, 400_000)


@pytest.mark.audit
@pytest.mark.parametrize("scale", [1, 13, 250])
def test_a_great_many_laplace_draws_have_their_law(scale: int) -> None:
    samplers.check_laplace(noise.discrete_laplace, scale, 400_000)


@pytest.mark.audit
def test_a_great_many_selections_have_their_law() -> None:
    samplers.check_softmax(noise.ExponentialMechanism, n=1_000_000)
    samplers.check_noisy_max(noise.NoisyMax, 200_000)
