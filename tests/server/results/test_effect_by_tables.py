"""Effects by tables that lack a rare combination of levels."""

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl_server.inference.interventions import Family
from fedbnsl_server.results.effect_by_tables import effects_by_tables
from fedbnsl_server.results.learned_network import LearnedNetwork


def test_probabilities_add_up_to_one_though_a_rare_combination_has_no_record() -> None:
    tables = {
        "z": Family((), np.array([1990.0, 10.0])),
        "a": Family(("z",), np.array([[995.0, 995.0], [10.0, 0.0]])),
        "b": Family(("a", "z"), np.array([[[700.0, 295.0], [5.0, 5.0]], [[300.0, 695.0], [0.0, 0.0]]])),
    }
    marks = np.zeros((3, 3), dtype=bool)
    marks[[0, 0, 1], [1, 2, 2]] = True
    columns, levels = Columns.of(tuple(tables)), dict.fromkeys(tables, ("0", "1"))
    network = LearnedNetwork(
        columns, marks, np.zeros_like(marks), np.eye(3), None, 0, {}, tables=tables, table_levels=levels
    )
    (one,) = effects_by_tables(network, 1, 2)
    assert one.left_out == pytest.approx([0.0, 0.005])
    assert one.probabilities.sum(axis=1) == pytest.approx([1.0, 1.0])
    assert one.effect.value == pytest.approx(695 / 995 - (0.995 * 295 / 995 + 0.005 * 5 / 10))
