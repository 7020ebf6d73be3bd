"""The figure of secure aggregation: the same tables with and without, and numbers that follow from the prices."""

import math

import pytest

from fedbnsl.privacy import zcdp
from fedbnsl_research.bench import secure_aggregation as figure


@pytest.mark.parametrize("epsilon", [0.5, 10.0])
def test_the_noise_is_the_product_of_its_causes(epsilon: float) -> None:
    row = figure.noise(epsilon)
    *shares, kept = [float(str(row[name]).rpartition(": ")[2]) for name in list(row)[1:6]]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(shares[-2] / math.sqrt(6.0), abs=2e-3)
    assert kept == pytest.approx(shares[-1] * math.sqrt(5.0 / 4.0), abs=2e-3), (
        "the price of five rounds in place of four"
    )
    assert row["noise of a release, with / without"] == pytest.approx(math.sqrt(5.0 / 4.0 / 6.0), abs=1e-3)
    delta = 1.0 / 5000**2
    assert zcdp.epsilon_as_in_the_paper(figure.paper_budget(epsilon, delta), delta) == pytest.approx(epsilon)


def test_a_sum_is_twice_as_many_bytes_as_float32_and_keys_grow_with_the_sites() -> None:
    few, more = figure.cost(3), figure.cost(6)
    up = "round of moments, bytes up a site"
    assert 1.9 < few[up] / few[f"{up}, without"] < 2.1
    assert few[up] == pytest.approx(more[up], rel=0.02)
    whole = "whole run, bytes a site"
    assert more[whole] - few[whole] > 3 * 32, "each site is told the keys of all"


def test_a_lost_site_costs_the_others_one_more_answer() -> None:
    row = figure.lost_site(4)
    up = figure.cost(4)["round of moments, bytes up a site"]
    assert row["bytes up again, each of the others"] == pytest.approx(up, rel=0.05)  # type: ignore[arg-type]
    assert row["noise of a release, with / without secure_aggregation_retries"] == pytest.approx(
        math.sqrt(5.0 / 4.0), abs=1e-3
    )


def test_graphs_are_learned_from_the_same_tables_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, int, float]] = []
    genuine = figure.run_plan

    def noted(plan, federation, *, noise_seed):  # type: ignore[no-untyped-def]
        seen.append((plan.privacy.secure_aggregation, noise_seed, float(federation.tables[0].sum())))
        return genuine(plan, federation, noise_seed=noise_seed)

    monkeypatch.setattr(figure, "run_plan", noted)
    row = figure.graphs(5, 400, 5.0, range(2, 4))
    assert [one[:2] for one in seen] == [(False, 2), (False, 3), (True, 2), (True, 3)]
    assert [one[2] for one in seen[:2]] == [one[2] for one in seen[2:]]
    assert row["figure"] == "private moments, epsilon 5, d=5, 8 x 400 rows, seeds 2..3"
    assert {"SHD", "SHD, without", "SHD by seed", "s a run"} <= set(row)
