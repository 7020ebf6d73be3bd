"""How ratios are written."""

import pytest

from fedbnsl_server.results.numbers import ratio, ratios


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.0051, "1.0051"),
        (0.98949, "0.989"),
        (1.0, "1.00"),
        (4.939, "4.94"),
        (3.096, "3.10"),
        (22.03, "22.0"),
        (1234.5, "1234"),
        (0.0123, "0.0123"),
        (1.2e9, "1.2e+09"),
        (None, "not known"),
    ],
)
def test_a_ratio_shows_how_far_it_is_from_1(value: float | None, shown: str) -> None:
    assert ratio(value) == shown


def test_an_interval_that_leaves_out_1_does_not_show_it() -> None:
    assert ratios((1.0039, 1.0064)) == "1.0039 to 1.0064"
