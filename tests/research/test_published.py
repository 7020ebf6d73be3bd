"""Published networks: tables follow the files, and what is lacking is said."""

from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import ResultError
from fedbnsl_research.tables.published import network_names, read_network

EDGES = "source,target,coefficient\na,b,2\nb,c,-1\n"
VARIABLES = "variable,intercept,noise_variance\na,1,4\nc,0,0.25\nb,3,1\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "networks" / "small"
    found.mkdir(parents=True)
    (found / "edges.csv").write_text(EDGES, encoding="utf-8")
    (found / "variables.csv").write_text(VARIABLES, encoding="utf-8")
    monkeypatch.setenv("FEDBNSL_DATA", str(tmp_path))
    return found


def test_tables_have_the_means_and_variances_that_the_files_say(folder: Path) -> None:
    """By hand: a = 1 + N(0, 4); b = 3 + 2 a + N(0, 1); c = -b + N(0, 1/4)."""
    network = read_network("small")
    assert network.variables == ("a", "c", "b")
    long, short = network.tables((100_000, 10), np.random.default_rng(1))
    assert short.shape == (10, 3)
    std = np.sqrt([4.0, 17.25, 17.0])
    np.testing.assert_allclose(long.mean(axis=0), [1.0, -5.0, 5.0], atol=5 * std.max() / np.sqrt(100_000))
    np.testing.assert_allclose(long.std(axis=0), std, rtol=0.02)
    np.testing.assert_allclose(network.mean, [1.0, -5.0, 5.0], atol=1e-12)
    np.testing.assert_allclose(network.std, std, rtol=1e-12)


def test_networks_are_listed_by_name_where_there_are_any(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "another").mkdir()
    (folder.parent / "another" / "variables.csv").write_text(VARIABLES, encoding="utf-8")
    (folder.parent / "none").mkdir()
    assert network_names() == ["another", "small"]
    monkeypatch.delenv("FEDBNSL_DATA")
    assert network_names() == []


def test_a_network_that_is_not_there_or_is_none_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "edges.csv").write_text("source,target,coefficient\na,x,2\n", encoding="utf-8")
    with pytest.raises(ResultError, match="cannot be read as a network"):
        read_network("small")
    with pytest.raises(ResultError, match=r"there is no .*large"):
        read_network("large")
    monkeypatch.delenv("FEDBNSL_DATA")
    with pytest.raises(ResultError, match="FEDBNSL_DATA is not set"):
        read_network("small")
