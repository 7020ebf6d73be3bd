"""`from fedbnsl import ...`: every public name is found and has an example that runs, or says who has it."""

import doctest
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import fedbnsl

NAMES = ("Dictionary", "FedSparseBNSL", "Network", "Plan", "join", "serve", "simulate")
DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_public_names_are_these() -> None:
    assert set(fedbnsl._PUBLIC) == set(NAMES)
    assert set(NAMES) <= set(dir(fedbnsl))
    with pytest.raises(AttributeError, match="has no attribute 'serf'"):
        _ = fedbnsl.serf


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.long
def test_the_example_of_a_public_name_runs(name: str) -> None:
    module = import_module(fedbnsl._PUBLIC[name][0])
    found = doctest.DocTestFinder(recurse=False).find(getattr(module, name), name, globs={})
    assert sum(len(one.examples) for one in found), f"{name} has no example"
    for one in found:
        assert not doctest.DocTestRunner().run(one).failed


@pytest.mark.parametrize(
    ("absent", "name", "distribution"),
    [
        ("fedbnsl_workbench", "simulate", "fedbnsl"),
        ("fedbnsl_workbench", "Network", "fedbnsl"),
        ("fedbnsl_client", "join", "fedbnsl-site"),
    ],
)
def test_a_name_of_a_distribution_that_is_not_installed_says_which(absent: str, name: str, distribution: str) -> None:
    hide = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name={absent!r})
sys.meta_path.insert(0, Hidden())
from fedbnsl import {name}
"""
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: fedbnsl.{name} is part of {distribution}: install it from the project's wheels "
        "(docs/how-to/install-offline.md)"
    )


def test_a_coordinator_writes_where_it_began_wherever_its_program_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    run = fedbnsl.serve("lean", sites=2, variables=["X1", "X2"])
    monkeypatch.chdir("elsewhere")
    x = np.random.default_rng(2).standard_normal((2, 300, 2))
    for k in range(2):
        fedbnsl.join(x[k], run.address, site=f"site-{k}", wait=False)
    assert run.network(60.0).folder == tmp_path / "run"
    assert {path.name for path in tmp_path.iterdir()} >= {"run", "security-log.jsonl"}
    assert not list(Path.cwd().iterdir())


@pytest.mark.long
def test_the_notebook_of_the_how_to_runs_a_real_federation_and_says_the_truth_of_it() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(5)
    tables = {}
    for site in ("north", "south", "west"):
        dose, age = rng.standard_normal((2, 400))
        tables[site] = pandas.DataFrame({"dose": dose, "age": age, "pain": dose + age + rng.standard_normal(400)})
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "how-to/notebook.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {"tables": tables}
    for block in blocks:
        exec(block, names)
    network, same = names["network"], names["same"]
    assert isinstance(network, fedbnsl.Network)
    assert isinstance(same, fedbnsl.Network)
    assert same.edges.equals(network.edges)
    assert same.result["edges"] == network.result["edges"] == fedbnsl.Network.load(network.folder).result["edges"]
    assert set(zip(network.edges["source"], network.edges["target"], strict=True)) == {
        ("dose", "pain"),
        ("age", "pain"),
    }
    assert network.effect("dose", "pain")["verdict"] == "identified"
    assert set(network.graph().edges) == {("dose", "pain"), ("age", "pain")}
    assert '<svg class="dag"' in network._repr_html_()
    assert "2 links if common causes may be hidden" in str(network)
    assert Path("first-run/report.html").is_file()
