"""The network of a notebook says at once what contradicts it, and takes and gives what programs hold."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.network.predictions import predicted
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.network import Network
from fedbnsl_workbench.networks.rows import read_rows, rows_of_table
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
    network = Network.load(folder)
    assert network.warnings == []
    assert repr(network).endswith("1 edge)")
    shown = network._repr_html_()
    assert shown.count('<svg class="dag"') == 2, "with marks, and if no cause is hidden"
    assert "color: var(--red" not in shown


def test_what_contradicts_a_result_comes_first_as_in_the_summary(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    result["verdict"]["contradicted"] = ["sites differ in <b>"]
    result["verdict"]["few_rows"] = ["7 rows are few"]
    result["warnings"] = ["7 rows are few", "another one"]
    result["warning_codes"] = ["few_rows", "other_versions"]
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    network = Network.load(folder)
    said = ["7 rows are few.", "the data contradict what was assumed: Sites differ in <b>."]
    assert in_red(network.result) == said
    assert network.warnings == [*said, "another one"]
    assert repr(network).endswith("1 edge; be careful: 2 findings, see .warnings)")
    before, drawing, after = network._repr_html_().partition('<svg class="dag"')
    assert before.count("color: var(--red, #b00020)") == 2
    assert "Sites differ in &lt;b&gt;." in before
    assert drawing
    assert "<ul><li>another one</li></ul>" in after


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """dose (0 to 10 mg) raises "well = being", a number, by 2 a mg, and the odds of pain, which is no or yes."""
    rng, tables = np.random.default_rng(3), {}
    dictionary: dict[str, Any] = {
        "dose": {"range": [0, 10], "unit": "mg", "tier": 1},
        "well = being": {"tier": 2},
        "pain": {"kind": "binary", "levels": ["no", "yes"], "tier": 2},
    }
    plan = Plan.load("standard").with_settings(bootstrap=5, n_participants=2, dictionary=dictionary)
    for site in ("x", "y"):
        dose = np.clip(rng.normal(5.0, 1.5, 1500), 0.0, 10.0)
        well = 2.0 * dose + rng.normal(size=1500)
        pain = rng.random(1500) < 1.0 / (1.0 + np.exp(3.0 - 0.8 * dose))
        X = np.column_stack([dose, well, pain])
        tables[site] = Dataset.of_values(list(dictionary), X, origin=site, dictionary=plan.dictionary, warn=False)
    out = tmp_path_factory.mktemp("described") / "run"
    simulate(plan, tables, out)
    return Network.load(out)


def test_edges_are_a_data_frame_of_what_the_result_has(described: Network) -> None:
    pytest.importorskip("pandas")
    rows = described.edges.to_dict("records")
    assert len(rows) == len(described.result["edges"]) == 2
    for row, told in zip(rows, described.result["edges"], strict=True):
        assert {key: row[key] for key in ("source", "target", "weight", "directed")}.items() <= told.items()
        assert [row["low"], row["high"]] == told["interval"]
        assert row["share"] == told["bootstrap"]["adjacent"]


def test_without_pandas_an_error_says_where_the_edges_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SetupError, match="needs pandas") as error:
        _ = Network.load(folder).edges
    assert error.value.remedy == 'pip install pandas; ``result["edges"]`` has the same.'
    assert error.value.__notes__ == [error.value.remedy]


def test_questions_are_built_step_by_step_and_answered_as_ask_answers(described: Network) -> None:
    question = described.given({"well = being": 12})
    both = question.given(pain="yes")
    assert both.predict("dose").told == described.ask("dose", given={"well = being": 12, "pain": "yes"})
    assert question.predict("dose").told == described.ask("dose", given={"well = being": 12})
    assert described.given(dose=8).mean("well = being") == pytest.approx(16.0, abs=0.3)
    answer = described.do(dose=8).none_hidden().predict("well = being")
    assert answer.interval == pytest.approx((16.0 - 1.96, 16.0 + 1.96), abs=0.3)
    assert answer.spread == pytest.approx(1.0, abs=0.05)
    assert repr(answer).startswith("well = being, where dose set to 8: mean 1")
    assert repr(answer).endswith("; if no common cause is hidden")
    assert described.given(dose=2).probabilities("pain")["yes"] == pytest.approx(1 / (1 + np.exp(1.4)), abs=0.05)


@pytest.mark.parametrize("value", [np.float32(8.0), np.int64(8), np.array(8), 8.0, "8", " 8.0 "])
def test_numbers_of_any_type_are_the_same_number(described: Network, value: object) -> None:
    assert described.ask("pain", given={"dose": value}) == described.ask("pain", given={"dose": 8})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("dose", None, "stands for a missing value"),
        ("dose", float("nan"), "stands for a missing value"),
        ("dose", "NA", "stands for a missing value"),
        ("dose", [1, 2], r"dose = \[1, 2\]: expected one number"),
        ("dose", "much", "dose = 'much': expected a number in mg"),
        ("dose", 11, "the data dictionary has values from 0 to 10"),
        ("dose", 10**400, "expected one number"),
        ("pain", True, "pain = True: expected one of 'no', 'yes'"),
        ("pain", "Yes", "'Yes' is no level of 'pain', which has 'no', 'yes'"),
        ("pains", "yes", "'pains' is not a variable of the network"),
        (3, "yes", "3 is not a variable of the network"),
    ],
)
def test_values_that_are_none_of_the_dictionary_are_named(
    described: Network, name: Any, value: object, words: str
) -> None:
    with pytest.raises(SetupError, match=words):
        described.ask("well = being", given={name: value})


def test_what_cannot_be_asked_says_what_can(described: Network) -> None:
    with pytest.raises(SetupError, match="has levels, and so no mean") as error:
        described.given(dose=1).mean("pain")
    assert error.value.__notes__ == ["Ask for .probabilities."]
    with pytest.raises(SetupError, match="is a number, and has no levels"):
        described.given(dose=1).probabilities("well = being")
    with pytest.raises(SetupError, match="rests on there being no hidden common cause") as error:
        described.do(dose=1).mean("well = being")
    assert "none_hidden" in error.value.__notes__[0]
    with pytest.raises(SetupError, match="'dose' has two values"):
        described.given(dose=1).given(dose=2)
    for target in (["pain"], 5, None):
        with pytest.raises(SetupError, match="expected the name of one variable"):
            described.ask(target)  # type: ignore[arg-type]
    for rows, seed in ((2.5, 1), ("x", 1), (3, None)):
        with pytest.raises(SetupError, match="expected whole numbers"):
            described.sample(rows, seed)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="expected names of variables"):
        described.effect(5, "pain")  # type: ignore[arg-type]
    for change in ((50, None), (1.0,), "high", 5):
        with pytest.raises(SetupError, match="expected two numbers"):
            described.effect("dose", "pain", change=change)  # type: ignore[arg-type]
    for folder in (5, None):
        with pytest.raises(ResultError, match="expected the path of a run folder"):
            Network.load(folder)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="expected a dict from name to value"):
        described.given(["dose"])  # type: ignore[arg-type]


def test_frames_of_rows_are_predicted_as_tables_are(described: Network, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame(
        {"dose": [4.0, None, 6.0, 4.0], "pain": ["yes", "no", None, "perhaps"]}, index=["a", "b", "c", "d"]
    )
    rows.to_csv(tmp_path / "rows.csv", index=False)
    found = described.predict(rows, "well = being")
    X, unread = rows_of_table(described.fitted, read_rows(tmp_path / "rows.csv"))
    expected = predicted(described.fitted, X, "well = being", np.random.default_rng(1))
    assert found.index.tolist() == ["a", "b", "c", "d"]
    assert found["predicted"].tolist() == expected.mean.tolist()
    assert found.attrs["unread"] == unread == {"pain": 1}
    assert found["predicted"]["a"] == pytest.approx(8.0, abs=0.2)
    of_levels = described.predict(rows[["dose"]], "pain")
    assert list(of_levels) == ["no", "yes"]
    assert of_levels.sum(axis=1).tolist() == pytest.approx([1.0] * 4)
    with pytest.raises(SetupError, match="expected a data frame of rows to predict; got list"):
        described.predict([1.0], "pain")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="the table has no column of the network"):
        described.predict(pandas.DataFrame({"other": [1]}), "pain")


def test_a_comparison_is_a_data_frame_of_what_changed(described: Network, folder: Path) -> None:
    pytest.importorskip("pandas")
    alike = described.diff(described.folder)
    assert alike.empty
    assert alike.attrs["same"] == 2
    with pytest.raises(SetupError, match="no variable in common"):
        described.diff(Network.load(folder))


def test_files_are_read_once(described: Network, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(described.folder, copy)
    network = Network.load(copy)
    before = network.ask("pain")
    network.effect("dose", "pain")
    shutil.rmtree(copy)
    assert network.ask("pain") == before
    assert network.effect("dose", "pain") == described.effect("dose", "pain")
    with pytest.raises(ResultError, match="is no run folder with a result"):
        Network.load(copy)


def test_a_drawing_is_written_as_a_page_or_a_picture(described: Network, tmp_path: Path) -> None:
    drawing = described.plot(none_hidden=True)
    page = drawing.save(tmp_path / "network.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert drawing.html in page
    picture = drawing.save(tmp_path / "network.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert picture.count('class="node"') == 3
    with pytest.raises(SetupError, match=r"is written as \.html or \.svg"):
        drawing.save(tmp_path / "network.png")
