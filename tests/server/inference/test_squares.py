"""Lines through parabolas, of which a search with squares tells."""

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl_server.inference.confidence import Evidence, confidence_of
from fedbnsl_server.inference.squares import Bends
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.linear_network import Accuracy, fitted
from fedbnsl_server.search.private.combined_releases import Released
from fedbnsl_server.search.private.noisy_class_search import Learned


def test_the_error_of_a_line_through_a_parabola_is_that_of_records_that_scatter_unevenly() -> None:
    """As the sandwich estimate, which of equal scatter would be half as large."""
    n = 100_000
    x, e = np.random.default_rng(0).standard_normal((2, n))
    y = x**2 + e
    X = np.column_stack([x, y, x**2])
    X -= X.mean(axis=0)
    x, y, _ = X.T
    slope = x @ y / (x @ x)
    sandwich = np.linalg.norm(x * (y - slope * x)) / (x @ x)

    S, dag, columns = (
        X.T @ X / n,
        np.array([[False, True], [False, False]]),
        Columns.of(("x", "y", "x^2"), {"x^2": "x"}),
    )
    network, accuracy = fitted(dag, S, columns), Accuracy(n)
    found = FoundGraph(dag, network.weights, network.residual_variance, 0.0)
    learned = Learned(found, S, accuracy, np.empty(0), np.arange(3), Released(S, np.zeros_like(S), np.eye(3), n))
    bends = Bends(learned, EdgeMask(Knowledge(), columns), 2, lambda dag: dag, np.zeros(2, dtype=bool))
    (error,) = bends.of_lines(confidence_of(dag, Evidence(S, accuracy), columns, None)).standard_error
    assert error == pytest.approx(sandwich, rel=0.1)
