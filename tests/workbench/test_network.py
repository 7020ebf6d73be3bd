"""The network of a notebook says at once what contradicts it."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.network import Network
from fedbnsl_workbench.report.summary import in_red
from fedbnsl_workbench.simulate import simulate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, tables = np.random.default_rng(0), {}
    for site in ("x", "y"):
        a, b = rng.normal(size=(2, 300))
        tables[site] = Dataset(("a", "b"), np.column_stack([a, a + b]))
    out = tmp_path_factory.mktemp("network") / "run"
    simulate(Plan.load("standard").with_settings(bootstrap=0, n_participants=2), tables, out)
    return out


def test_a_quiet_result_shows_its_drawing_alone(folder: Path) -> None:
    network = Network.read(folder)
    assert network.warnings == []
    assert repr(network).endswith("1 edge)")
    assert network._repr_html_().startswith("<svg")


def test_what_contradicts_a_result_comes_first_as_in_the_summary(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    result["verdict"]["contradicted"] = ["sites differ in <b>"]
    result["verdict"]["few_rows"] = ["7 rows are few"]
    result["warnings"] = ["7 rows are few", "another one"]
    result["warning_codes"] = ["few_rows", "other_versions"]
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    network = Network.read(folder)
    said = ["7 rows are few.", "the data contradict what was assumed: Sites differ in <b>."]
    assert in_red(network.result) == said
    assert network.warnings == [*said, "another one"]
    assert repr(network).endswith("1 edge; be careful: 2 findings, see .warnings)")
    before, drawing, after = network._repr_html_().partition("<svg")
    assert before.count("<p ") == 2
    assert "Sites differ in &lt;b&gt;." in before
    assert drawing
    assert after.endswith("<ul><li>another one</li></ul>")
