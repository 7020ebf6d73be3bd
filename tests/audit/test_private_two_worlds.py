"""A whole `private` run with secure aggregation, judged by what the coordinator and a colluding site can tell of it."""

import logging
from contextlib import AbstractContextManager
from unittest import mock

import numpy as np
import pytest

from audit import private_two_worlds, two_worlds
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.privacy import grid_products, private_moments

_LOG = logging.getLogger(__name__)


@pytest.mark.audit
def test_a_private_run_tells_no_more_than_its_price_against_colluders_and_pretended_losses() -> None:
    in_A, in_B, squares = private_two_worlds.statistics(500)
    found = private_two_worlds.check_bound(in_A, in_B)
    reached, claimed = private_two_worlds.reached_mu(in_A, in_B), private_two_worlds.claimed_mu()
    _LOG.info("mu is at least %.3f and about %.3f where %.3f is claimed", found, reached, claimed)
    assert reached > 0.75 * claimed, "the judge misses what was told"
    two_worlds.check_law(in_A, in_B)
    private_two_worlds.check_widths(squares)


@pytest.mark.audit
def test_a_person_of_several_rows_loses_no_more_than_a_record() -> None:
    in_A, in_B, squares = private_two_worlds.statistics(300, of_persons=True)
    found = private_two_worlds.check_bound(in_A, in_B)
    reached, claimed = private_two_worlds.reached_mu(in_A, in_B), private_two_worlds.claimed_mu()
    _LOG.info("a person: mu is at least %.3f and about %.3f where %.3f is claimed", found, reached, claimed)
    assert reached > 0.75 * claimed, "the judge misses what was told"
    two_worlds.check_law(in_A, in_B)
    private_two_worlds.check_widths(squares)


@pytest.mark.audit
def test_rows_of_a_person_that_count_as_records_are_flagged() -> None:
    def each_row(Z: Matrix, gaps: Index, V: Matrix, sizes: Index, *rest: object) -> None:
        grid_products.add_person_products(Z, gaps, V, np.ones(len(Z), dtype=np.int64), *rest)

    with mock.patch.object(private_moments, "add_person_products", each_row):
        in_A, in_B, _ = private_two_worlds.statistics(100, of_persons=True)
    with pytest.raises(AssertionError, match="was claimed") as flagged:
        private_two_worlds.check_bound(in_A, in_B)
    _LOG.info("%s; about %.3f", flagged.value, private_two_worlds.reached_mu(in_A, in_B))


def _a_quarter(name: str) -> AbstractContextManager[object]:
    genuine = getattr(private_moments, name)
    if name == "rounded_gaussian":
        return mock.patch.object(private_moments, name, lambda variance, source: genuine(variance // 4, source))
    return mock.patch.object(
        private_moments, name, lambda variances, *rest: genuine(tuple(one // 4 for one in variances), *rest)
    )


@pytest.mark.audit
def test_a_quarter_of_the_variance_is_flagged() -> None:
    with _a_quarter("rounded_gaussian"), _a_quarter("rounded_gaussians"):
        in_A, in_B, squares = private_two_worlds.statistics(150)
    with pytest.raises(AssertionError, match="was claimed") as flagged:
        private_two_worlds.check_bound(in_A, in_B)
    _LOG.info("%s; about %.3f", flagged.value, private_two_worlds.reached_mu(in_A, in_B))
    for part, found in squares.items():
        with pytest.raises(AssertionError, match=part):
            private_two_worlds.check_widths({part: found})
