"""What a result says of tests of the shape of noise."""

import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_server.inference.noise import Noise, NoiseTest
from fedbnsl_server.results.noise import noise_tests, with_noise
from fedbnsl_server.results.sentences import in_words


@pytest.mark.parametrize(
    ("shares", "said"), [((1.0, 1.0), ""), ((1.0, 0.57), " (told by sites with 57 % or more of the rows)")]
)
def test_the_share_of_rows_whose_sites_tell_of_noise_is_said(shares: tuple[float, float], said: str) -> None:
    noise = Noise(3, tuple(NoiseTest("a", other, 0.4, 1e-9, share) for other, share in zip("bc", shares, strict=True)))
    (_, tested), (_, untested) = noise_tests(Plan.load("standard"), noise)
    assert in_words(tested).endswith(f"direction alone of 2 edges that second moments leave open{said}")
    assert in_words(untested).startswith("the shape of noise at 1 edge that second moments leave open")
    edges = with_noise([{"source": "c", "target": "a"}], noise)
    assert edges[0]["noise"] == {"p": 1e-9, "p_reversed": 0.4, "share_of_rows": shares[1]}
