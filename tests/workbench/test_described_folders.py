"""A folder of tables with a data dictionary: `simulate` and the notebook class need nothing else."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from described_tables import COLUMNS, ENTRIES, VARIABLES, dictionary, write_dictionary, write_folder, write_ward
from fedbnsl.errors import DataError, PlanError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.site_files import site_files
from fedbnsl_client.refit import personalise
from fedbnsl_workbench.estimator import FedSparseBNSL
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import by_site, described_by, ranges_of_generated, read_tables
from fedbnsl_workbench.tables.synthetic import synthesise

pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data")


def test_a_folder_is_simulated_by_its_dictionary_and_scored_between_variables(
    folder: Path, tmp_path: Path, fedbnsl: Callable[..., Any]
) -> None:
    (folder / "truth.csv").write_text("source,target\nage,crp\nsex,crp\nblood,visits\n", encoding="utf-8")
    outcome = fedbnsl("simulate", "standard", "--data", folder, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert re.search(r"SHD of the classes [01] of 3 edges", outcome.out)
    _, *edges = (tmp_path / "run" / "edges.csv").read_text(encoding="utf-8").splitlines()
    pairs = {frozenset(edge.split(",")[:2]) for edge in edges}
    assert pairs >= {frozenset(pair) for pair in (("age", "crp"), ("sex", "crp"), ("blood", "visits"))}
    assert "warning: site-1: " in outcome.err
    assert "row(s) lack a value, and count for those that they have: 'age'" in outcome.err
    assert "[dictionary.blood]" in (tmp_path / "run" / "plan.toml").read_text(encoding="utf-8")
    again = fedbnsl("simulate", tmp_path / "run" / "plan.toml", "--data", folder, "--out", tmp_path / "again")
    assert again.code == 0, again.err


def test_an_export_with_semicolons_and_decimal_commas_gives_the_result_of_one_with_commas_and_points(
    tmp_path: Path, fedbnsl: Callable[..., Any]
) -> None:
    random = np.random.default_rng(1)
    dose = random.choice([0.5, 1.5], size=300)
    age, grade = 50 + 9 * random.normal(size=300), random.choice(["i", "ii", "iii"], size=300)
    crp = age / 5 + 3 * dose + random.normal(size=300)
    table = pd.DataFrame({"age": age.round(2), "dose": dose, "grade": grade, "CRP, mg/l": crp.round(3)})

    def found(data: Path) -> tuple[str, str]:
        """A drafted dictionary, and what a run by it finds."""
        for command in (["data", "dictionary", data, "--public-data"], ["simulate", "standard", "--data", data]):
            outcome = fedbnsl(*command, *(["--out", data / "run"] if command[0] == "simulate" else []))
            assert outcome.code == 0, outcome.err
        drafted, edges = data / "dictionary.toml", data / "run" / "edges.csv"
        return drafted.read_text(encoding="utf-8"), edges.read_text(encoding="utf-8")

    def export(part: pd.DataFrame, path: Path) -> None:
        part.to_csv(path, index=False, sep=";", decimal=",", quoting=csv.QUOTE_NONNUMERIC)

    table.to_csv(tmp_path / "usual.csv", index=False)
    export(table, tmp_path / "export.csv")
    for name in ("usual", "export"):
        outcome = fedbnsl("data", "split", tmp_path / f"{name}.csv", "--contiguous", "--out", tmp_path / name)
        assert outcome.code == 0, outcome.err
    (tmp_path / "own").mkdir()
    for k in range(3):
        export(table[100 * k : 100 * (k + 1)], tmp_path / "own" / f"site-{k + 1}.csv")
    expected = found(tmp_path / "usual")
    assert '["0.5", "1.5"]' in expected[0]
    assert "age" in expected[1]
    assert found(tmp_path / "export") == expected
    assert found(tmp_path / "own") == expected


def test_settings_are_tuned_on_a_folder_by_its_dictionary_against_a_truth_between_variables(
    folder: Path, tmp_path: Path, fedbnsl: Callable[..., Any]
) -> None:
    (folder / "truth.csv").write_text("source,target\nage,crp\nsex,crp\nblood,visits\n", encoding="utf-8")
    grid = tmp_path / "grid.toml"
    grid.write_text("bootstrap = [0]\n", encoding="utf-8")
    outcome = fedbnsl("tune", "standard", "--grid", grid, "--data", folder, "--out", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.err
    assert '"metric": "shd"' in outcome.out
    assert "[dictionary.blood]" in (tmp_path / "out" / "best.toml").read_text(encoding="utf-8")


def test_another_number_of_sites_than_tables_is_refused(
    folder: Path, tmp_path: Path, fedbnsl: Callable[..., Any]
) -> None:
    n = len(site_files(folder))
    asked = ("simulate", "standard", "--data", folder, "--set", f"n_participants={n + 1}", "--out", tmp_path / "run")
    outcome = fedbnsl(*asked)
    assert outcome.code == 2
    assert f"--set n_participants={n + 1}: there are {n} tables" in outcome.err
    assert not (tmp_path / "run").exists()


def test_columns_name_variables_of_the_dictionary(folder: Path, tmp_path: Path, fedbnsl: Callable[..., Any]) -> None:
    outcome = fedbnsl(
        "simulate", "standard", "--data", folder, "--columns=visits,blood,age", "--out", tmp_path / "run", "--json"
    )
    assert outcome.code == 0, outcome.err
    assert '"variables": ["visits", "blood", "age"]' in outcome.out
    wrong = fedbnsl("simulate", "standard", "--data", folder, "--columns=age,blood=A", "--out", tmp_path / "no")
    assert wrong.code == PlanError.exit_code


def test_a_plan_with_another_dictionary_is_refused_with_both_names(folder: Path) -> None:
    other = dictionary(age={"range": [0.0, 99.0]})
    with pytest.raises(PlanError) as refused:
        described_by(Plan(dictionary=other), folder)
    assert other.digest()[:8] in str(refused.value)
    assert dictionary().digest()[:8] in str(refused.value)
    assert described_by(Plan(dictionary=dictionary()), folder).dictionary == dictionary()


def test_another_dictionary_than_that_of_the_folder_is_refused_by_what_it_was_given_as(
    folder: Path, tmp_path: Path, fedbnsl: Callable[..., Any]
) -> None:
    other = write_dictionary(tmp_path / "other.toml", age={"unit": "months"})
    beside = folder / "dictionary.toml"
    for command in (["simulate", "standard"], ["demo", "--plan", "standard"]):
        outcome = fedbnsl(*command, "--data", folder, "--dictionary", other, "--out", tmp_path / "run")
        assert outcome.code == PlanError.exit_code
        assert f"--dictionary {other} (" in outcome.err
        assert f") is not that of {beside} (" in outcome.err
        assert "neither is used" in outcome.err
        assert f"Leave --dictionary out to use {beside}, or move that file away to use {other}" in outcome.err
        assert "of plan" not in outcome.err


def test_a_private_demo_without_ranges_is_refused_before_any_process_is_started(
    folder: Path, tmp_path: Path, fedbnsl: Callable[..., Any]
) -> None:
    alone = "--set=privacy.secure_aggregation=false"  # two sites are too few for it
    demo = ("demo", "--private", "--plan", "private", alone, "--data", folder, "--out", tmp_path / "run")
    write_dictionary(folder / "dictionary.toml", age={"unit": "years"})
    open_ended = fedbnsl(*demo)
    (folder / "dictionary.toml").unlink()
    for outcome, said in ((open_ended, "no range for 'age'"), (fedbnsl(*demo), "takes a data dictionary")):
        assert outcome.code == PlanError.exit_code
        assert said in outcome.err
    assert not (tmp_path / "run").exists()


def test_generated_tables_lie_within_the_ranges_of_their_dictionary() -> None:
    federation = synthesise(20, 20, 3, 1000, 2)
    columns = ranges_of_generated(federation.variables).columns()
    assert [column.name for column in columns] == list(federation.variables)
    outside = [(np.abs(X) > columns[0].high).mean() for X in federation.tables]
    assert max(outside) < 0.001


def test_every_table_that_does_not_fit_the_dictionary_is_named(folder: Path) -> None:
    narrow = dictionary(blood={"kind": "nominal", "levels": ["0", "A", "AB"]})
    with pytest.raises(DataError) as refused:
        read_tables(site_files(folder), (), dictionary=narrow)
    assert "2 of 2 tables cannot be used" in str(refused.value)
    assert str(refused.value).count("no level of the data dictionary, such as 'B'") == 2


# ---- notebooks -----------------------------------------------------------------------------------------------------


def frame(path: Path) -> Any:
    """What a notebook would have of a table: categories, truth values, missing values of several kinds."""
    table = pd.read_csv(path, dtype={"blood": "category", "sex": "string"})
    table["sex"] = (table["sex"] == "m").astype("boolean").mask(table["sex"].isna())
    table["visits"] = table["visits"].astype("Int64")
    table["note"] = "not used"
    return table


WORDS = {**ENTRIES, "sex": {"kind": "binary", "levels": ["false", "true"]}}


def test_data_frames_with_categories_and_gaps_are_read_as_files_are(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "ward.csv", 2)
    from_file = Dataset.read(path, dictionary=dictionary())
    described = dictionary(sex=WORDS["sex"])
    from_frame = site_tables([frame(path)], dictionary=described)["site-1"]
    assert from_frame.variables == COLUMNS
    assert from_frame.X.tobytes() == from_file.X.tobytes()
    assert from_frame.gaps == from_file.gaps


def test_a_model_takes_a_dictionary_as_a_dict_a_path_or_itself(tmp_path: Path) -> None:
    paths = [write_ward(tmp_path / f"site-{k}.csv", k, rows=300) for k in (1, 2)]
    tables = [frame(path) for path in paths]
    path = write_dictionary(tmp_path / "dictionary.toml", sex=WORDS["sex"])
    given = (WORDS, str(path), dictionary(sex=WORDS["sex"]))
    models = [FedSparseBNSL(plan="standard", dictionary=words).fit(tables) for words in given]
    model = models[0]
    assert all(other.edges_ == model.edges_ for other in models)
    assert list(model.feature_names_in_) == list(VARIABLES)
    assert list(model.columns_) == list(COLUMNS)
    assert model.weights_.shape == (6, 6)
    assert model.graph_.has_edge("blood", "visits") or model.graph_.has_edge("visits", "blood")
    simulate(
        Plan.load("standard").with_settings(n_participants=2, dictionary=dictionary(sex=WORDS["sex"]).model_dump()),
        site_tables(tables, dictionary=dictionary(sex=WORDS["sex"])),
        tmp_path / "run",
    )
    own = model.personalised(tables[0])
    whole = site_tables([tables[0]], dictionary=dictionary(sex=WORDS["sex"]))["site-1"]
    data = whole.complete_cases()
    assert own.variables == COLUMNS
    ends = [COLUMNS.index("blood=A"), COLUMNS.index("visits")]
    assert own.dag[np.ix_(ends, ends)].any()
    assert np.array_equal(own.weights, personalise(whole, own.dag, intercept=True).weights)
    W = np.zeros((6, 6))
    for edge in model.result_["edges"]:
        for pair in edge.get("coefficients", [edge]):
            W[COLUMNS.index(pair["source"]), COLUMNS.index(pair["target"])] = pair["weight"]
    assert np.array_equal(model.weights_, W)
    X = data.X - data.X.mean(axis=0)
    scales = np.array([model.result_["preparation"]["scales"][name] for name in COLUMNS])
    left = ((X - X @ W) / scales) ** 2
    assert model.score([tables[0]]) == pytest.approx(-left.sum() / (2 * len(X)), rel=1e-9)


def test_a_refit_by_a_dictionary_has_an_intercept_and_says_which_weights_are_not_known(
    tmp_path: Path, fedbnsl: Callable[..., Any]
) -> None:
    folder = write_folder(tmp_path / "data", gaps=False)
    edges = tmp_path / "edges.csv"
    edges.write_text("source,target,weight\nage,crp,1\nsex,visits,1\n", encoding="utf-8")
    start = ("participant", "refit", edges, "--dictionary", folder / "dictionary.toml", "--data")

    def weights(out: str) -> list[str]:
        with (tmp_path / out / "edges.csv").open(encoding="utf-8") as lines:
            return [row["weight"] for row in csv.DictReader(lines)]

    table = pd.read_csv(folder / "site-2.csv")
    age, crp = table["age"], np.log1p(table["crp"])
    outcome = fedbnsl(*start, folder / "site-2.csv", "--out", tmp_path / "own")
    assert outcome.code == 0, outcome.err
    assert "further from zero" not in outcome.err
    assert "no weight" not in outcome.out
    assert float(weights("own")[0]) == pytest.approx(np.polyfit(age, crp, 1)[0])
    outcome = fedbnsl(*start, folder / "site-2.csv", "--no-intercept", "--out", tmp_path / "about-zero")
    assert "warning: column(s) 'age', 'crp'" in outcome.err
    assert "further from zero than the standard deviation, and regressions have no intercept" in outcome.err
    assert float(weights("about-zero")[0]) == pytest.approx((age @ crp) / (age @ age))
    table.assign(crp="").to_csv(tmp_path / "lacks.csv", index=False)
    outcome = fedbnsl(*start, tmp_path / "lacks.csv", "--out", tmp_path / "lacks")
    assert "refitted 2 edges on 200 rows" in outcome.out
    assert "1 of 2 edges have no weight here: this table has no value of 'crp'; lgbn.json is not written" in outcome.out
    assert [bool(weight) for weight in weights("lacks")] == [False, True]
    outcome = fedbnsl(*start, tmp_path / "lacks.csv", "--json", "--out", tmp_path / "as-json")
    assert outcome.code == 4
    assert "1 of 2 edges have no weight" in outcome.err


@pytest.mark.parametrize("kind", ["string", object])
def test_text_without_a_dictionary_is_refused_with_the_way_on(tmp_path: Path, kind: Any) -> None:
    table = pd.read_csv(write_ward(tmp_path / "ward.csv", 2), dtype={"blood": kind})[["age", "blood"]]
    with pytest.raises(DataError, match=r"site-1: column 'blood': \d+ row\(s\) are not numbers") as refused:
        FedSparseBNSL(plan="standard").fit([table])
    assert "dictionary=" in refused.value.remedy


def test_an_unknown_category_is_refused_by_its_spelling(tmp_path: Path) -> None:
    table = frame(write_ward(tmp_path / "ward.csv", 2))
    narrow = {**WORDS, "blood": {"kind": "nominal", "levels": ["0", "A", "AB"]}}
    with pytest.raises(DataError, match="no level of the data dictionary, such as 'B'"):
        FedSparseBNSL(plan="standard", dictionary=narrow).fit([table])
    with pytest.raises(DataError, match="no site has 'height'"):
        FedSparseBNSL(plan="standard", dictionary={**WORDS, "height": {}}).fit([table])


def test_a_remark_on_several_tables_is_made_once_with_their_sites() -> None:
    assert by_site({"a": ["x", "y"], "b": ["x", "z"], "c": ["x", "z"]}) == ["every site: x", "a: y", "b, c: z"]
    assert by_site({"a": ["x"]}) == ["a: x"]
