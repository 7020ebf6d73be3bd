"""`bench network-answers`: how exactly learned networks are answered for."""

import os
from pathlib import Path

import pytest

from fedbnsl_research.bench import network_answers

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:pgmpy")


def test_answers_are_those_of_pgmpy_and_of_the_normal_law(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path(os.environ.get("FEDBNSL_DATA", "/nowhere"), "discrete").is_dir():
        pytest.skip("needs the published networks in FEDBNSL_DATA/discrete")
    monkeypatch.setattr(network_answers, "_PUBLISHED", ("sachs",))
    monkeypatch.setattr(network_answers, "_ROWS", 1000)
    sachs, lines = network_answers.network_answers([2])
    assert sachs["answers by draws"] == 0
    assert float(sachs["furthest from pgmpy"]) < 1e-9
    assert float(lines["furthest from the normal law"]) < 1e-9
