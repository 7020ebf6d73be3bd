"""`fedbnsl participant predict`: a site's own rows by a network from outside, in the consortium's words."""

import csv
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from described_tables import COLUMNS, dictionary, write_column_map, write_dictionary, write_ward
from fedbnsl.cli import fedbnsl as root
from fedbnsl.errors import ResultError, SchemaMismatchError, SetupError
from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Count, Family, Levels, Number
from fedbnsl.network.fitted_network import NETWORK, FittedNetwork
from fedbnsl.plan.columns import Columns
from private_site import make_site

pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")
NONE = np.array([], dtype=np.int64)
# The law of `write_ward`; values of crp are logarithms of 1 + crp, and columns in another order than the table's.
FAMILIES: dict[str, Family] = {
    "age": Number(0, NONE, np.array([]), 60.0, 15.0, 0.0, 110.0),
    "sex": Levels(np.array([1]), NONE, np.empty((0, 1)), np.array([0.0]), by_odds=True),
    "crp": Number(2, np.array([0, 1]), np.array([0.029, 0.49]), 1.08, 0.29, 0.0, float(np.log1p(500.0))),
    "blood": Levels(np.array([3, 4]), NONE, np.empty((0, 2)), np.zeros(2), by_odds=True),
    "visits": Count(5, np.array([3]), np.array([1.2]), 0.3, "log1p", True, np.inf, 0.0, 100.0),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_site(
        tmp_path / "north",
        table=write_ward(tmp_path / "ward.csv", 1, own_words=True),
        dictionary=write_dictionary(tmp_path / "given.toml"),
        column_map=write_column_map(tmp_path / "own.toml"),
    )
    return tmp_path / "north"


def write_network(folder: Path, **entries: dict[str, object]) -> Path:
    names = ["age", "sex", "crp", "blood=A", "blood=B", "visits"]
    assert set(names) == set(COLUMNS)
    columns = Columns.of(names, {"blood=A": "blood", "blood=B": "blood"})
    fitted = FittedNetwork(
        BayesianNetwork(6, FAMILIES), columns, dictionary(**entries), np.array([60.0, 0.5, 3.1, 0.3, 0.3, 0.9]),
        np.array([15.0, 0.5, 0.6, 0.5, 0.5, 0.6]), {"sex": ["f", "m"], "blood": ["0", "A", "B"]},
        doubts=["its rows were few"],
    )  # fmt: skip
    folder.mkdir()
    (folder / NETWORK).write_text(fitted.to_json(), encoding="utf-8")
    return folder


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(root, ["participant", "predict", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def told(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


def test_rows_of_the_sites_own_words_are_predicted_from_what_they_have(folder: Path, tmp_path: Path) -> None:
    network, out = write_network(tmp_path / "run"), tmp_path / "out.csv"
    said = told(network, folder, "--target", "crp", "--common-means", "--out", out)
    assert said["rows"] == 200
    assert said["by_draws"] > 0  # ages and sexes that are not known
    assert said["scores"]["r2"] > 0.4
    assert 0.9 <= said["scores"]["within"] <= 0.99
    assert said["doubts"] == ["its rows were few"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with open(tmp_path / "ward.csv", encoding="utf-8", newline="") as real, open(out, encoding="utf-8") as file:
        for row, found in zip(csv.DictReader(real), csv.DictReader(file), strict=True):
            assert float(found["crp"] or "nan") == pytest.approx(float(row["crp"] or "nan"), rel=1e-9, nan_ok=True)
            if row["Alter"] and row["sex"]:
                centre = np.exp(1.08 + 0.029 * float(row["Alter"]) / 12 + 0.49 * (row["sex"] == "m") + 0.29**2 / 2) - 1
                assert float(found["predicted"]) == pytest.approx(centre, rel=0.01)
    visits = told(network / NETWORK, folder, "--target", "visits", "--out", tmp_path / "visits.csv")
    assert visits["scores"]["within"] >= 0.9
    shown = run(network, folder, "--target", "sex", "--out", tmp_path / "sex.csv")
    assert "be careful: its rows were few" in shown
    assert "area under the ROC curve" in shown
    assert "nothing has left this machine" in shown


def test_what_cannot_be_predicted_is_refused_and_nothing_written(folder: Path, tmp_path: Path) -> None:
    network, out = write_network(tmp_path / "run"), tmp_path / "out.csv"
    with pytest.raises(SetupError, match="'weight' is not a variable of the network"):
        told(network, folder, "--target", "weight", "--out", out)
    with pytest.raises(ResultError, match=r"network\.json cannot be read"):
        told(folder, folder, "--target", "crp", "--out", out)
    other = write_network(tmp_path / "other", age={"unit": "months", "range": [0.0, 1320.0]})
    with pytest.raises(SchemaMismatchError, match="says other things of 'age'"):
        told(other, folder, "--target", "crp", "--out", out)
    assert not out.exists()
    out.write_text("mine")
    with pytest.raises(SetupError, match="is not overwritten"):
        told(network, folder, "--target", "crp", "--out", out)
    assert out.read_text() == "mine"
    with pytest.raises(SetupError, match="there is no folder"):
        told(network, folder, "--target", "crp", "--out", tmp_path / "none" / "found.csv")


def test_variables_have_the_means_of_the_site_or_of_all_sites_where_it_tells_none(folder: Path, tmp_path: Path) -> None:
    network = write_network(tmp_path / "run")
    text = json.loads((network / NETWORK).read_text(encoding="utf-8"))
    text["families"]["crp"]["intercept"] += 1.5  # elsewhere crp is 4.5 times as high
    (network / NETWORK).write_text(json.dumps(text), encoding="utf-8")
    own = told(network, folder, "--target", "crp", "--out", tmp_path / "own.csv")
    common = told(network, folder, "--target", "crp", "--common-means", "--out", tmp_path / "common.csv")
    assert own["scores"]["r2"] > 0.4
    assert common["scores"]["r2"] < 0.0
    assert own["common_means"] == []
    assert common["common_means"] == ["age", "sex", "crp", "blood", "visits"]
    header, *rows = (tmp_path / "ward.csv").read_text(encoding="utf-8").splitlines()
    rows = [",".join([row.split(",")[0], "", *row.split(",")[2:]]) for row in rows]
    (tmp_path / "ward.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    unknown = told(network, folder, "--target", "crp", "--out", tmp_path / "unknown.csv")
    assert unknown["common_means"] == ["crp"]
    assert unknown["scores"] is None
