"""The adapter of DAGMA: against the package called by hand, and what it leaves alone."""

import sys

import numpy as np
import pytest

from fedbnsl.errors import SetupError
from fedbnsl.graphs.graph import threshold
from fedbnsl_research.comparators import dagma_adapter
from fedbnsl_research.comparators.dagma_adapter import dagma, dagma_installed
from fedbnsl_workbench.tables.synthetic import synthesise

needs_dagma = pytest.mark.skipif(not dagma_installed(), reason="needs the package dagma: pip install --no-deps dagma")


@needs_dagma
def test_it_finds_a_small_graph_and_leaves_the_table_the_random_state_and_the_terminal_alone(capfd):
    federation = synthesise(4, 4, 1, 2000, 5)
    X = federation.tables[0] + 3.0
    given, state = X.copy(), np.random.get_state()[1].copy()
    W = dagma(X, lam=0.05)
    assert (threshold(W, 0.3) == (federation.W != 0)).all()
    assert np.abs(W - federation.W)[federation.W != 0].max() < 0.3
    assert (given == X).all()
    assert (np.random.get_state()[1] == state).all()
    assert capfd.readouterr() == ("", "")
    assert "torch" not in sys.modules


@needs_dagma
def test_a_run_that_leaves_the_domain_does_not_change_the_next(monkeypatch):
    from dagma.linear import DagmaLinear

    seen = []

    def fit(self, X, **settings):
        seen.append(list(settings["s"]))
        settings["s"][0] += 0.1
        X -= 1.0
        return np.zeros((2, 2))

    monkeypatch.setattr(DagmaLinear, "fit", fit)
    X = np.ones((3, 2))
    dagma(X, lam=0.1)
    dagma(X, lam=0.1)
    assert seen[0] == seen[1]
    assert (X == 1.0).all()


def test_without_the_package_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(dagma_adapter.importlib.util, "find_spec", lambda name: None)
    assert not dagma_installed()
    with pytest.raises(SetupError, match="not installed") as caught:
        dagma(np.zeros((3, 2)), lam=0.1)
    assert "pip install" in caught.value.remedy
