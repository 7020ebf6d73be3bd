"""A plan, tables and a run for command lines."""

import pytest


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('name = "tiny"\nrounds = 3\n', encoding="utf-8")
    return path


@pytest.fixture
def tables(tmp_path, fedbnsl):
    assert (
        fedbnsl("data", "synth", "--nodes=5", "--edges=5", "--sites=2", "--rows=60", "--out", tmp_path / "data").code
        == 0
    )
    return tmp_path / "data"


@pytest.fixture
def run(plan, tables, tmp_path, fedbnsl):
    assert fedbnsl("simulate", plan, "--data", tables, "--out", tmp_path / "run").code == 0
    return tmp_path / "run"
