"""A site's own column map, drafted at the site: from a refused table to one that is read, by one command."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedbnsl.cli import fedbnsl
from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.drafts.column_map_draft import draft_column_map
from fedbnsl_client.data.reading import ColumnMap

WARD = """
[age]
[crp]
unit = "mg/l"
[smoker]
kind = "binary"
levels = ["no", "yes"]
[stage]
kind = "nominal"
levels = ["early", "late", "unknown"]
[sex]
kind = "binary"
levels = ["female", "male"]
"""
NAMES = ColumnMap.model_validate(
    {name: {"column": name.title()} for name in ("age", "smoker")} | {"crp": {"column": "CRP"}}
)
ROWS = [
    f"{20 + k % 50},{'<5' if k % 30 == 0 else '*' if k % 9 == 0 else k % 41},{'JN'[k % 2]},"
    f"{('Early', 'late ', 'unknown', '?')[k % 4]},{('FEMALE', 'male')[k // 2 % 2]}"
    for k in range(60)
]


def written(folder: Path, *, rows: list[str] = ROWS) -> tuple[Path, Path]:
    (folder / "dictionary.toml").write_text(WARD, encoding="utf-8")
    table = folder / "ward.csv"
    table.write_text("\n".join(["Age,CRP,Smoker ,stage,sex", *rows]) + "\n", encoding="utf-8")
    return table, folder / "dictionary.toml"


def test_one_command_at_the_site_makes_a_refused_table_one_that_is_read(tmp_path: Path) -> None:
    table, dictionary = written(tmp_path)
    described = Dictionary.load(dictionary)
    with pytest.raises(DataError) as refused:
        Dataset.read(table, dictionary=described, mapping=NAMES)
    assert "`fedbnsl data dictionary TABLE --dictionary dictionary.toml` drafts it" in refused.value.remedy
    found = CliRunner().invoke(fedbnsl, ["data", "dictionary", str(table), "--dictionary", str(dictionary)])
    assert found.exit_code == 0, found.output
    assert "It stays here" in found.output
    here = ColumnMap.load(tmp_path / "ward.columns.toml")
    assert set(here.missing) == {"*", "?"}
    read = Dataset.read(table, dictionary=described, mapping=here, warn=False)
    assert read.gaps.by_variable == {"crp": 8, "stage": 15}, "of 60 rows"
    assert read.X[0, 2] == 1.0, "J is yes"
    assert read.X[1, 2] == 0.0
    assert read.X[:, -1].sum() == 30
    assert "crp: 2 cell(s) are limits, such as <0.1 ('<5')" in found.output


def test_a_table_with_semicolons_and_decimal_commas_is_drafted_as_a_site_reads_it(tmp_path: Path) -> None:
    (tmp_path / "dictionary.toml").write_text(
        '[age]\n[dose]\nkind = "binary"\nlevels = ["0.5", "1"]\n', encoding="utf-8"
    )
    rows = [f"{20 + k},25;{('0,5', '1,0', '?')[k % 3]}" for k in range(60)]
    table, described = tmp_path / "ward.csv", Dictionary.load(tmp_path / "dictionary.toml")
    table.write_text("\n".join(["sep=;", "age;dose", *rows]) + "\n", encoding="utf-8")
    drafted = draft_column_map(table, described)
    assert (drafted.missing, drafted.settings, drafted.asks) == (("?",), {}, {})
    here = ColumnMap.model_validate({"missing": list(drafted.missing)})
    read = Dataset.read(table, dictionary=described, mapping=here, warn=False)
    assert read.X[:2].tolist() == [[20.25, 0.0], [21.25, 1.0]]


def test_levels_that_the_dictionary_lacks_are_left_to_a_person(tmp_path: Path) -> None:
    table, dictionary = written(tmp_path, rows=[*ROWS, "30,1,J,late,divers", "30,1,J,late,divers"])
    drafted = draft_column_map(table, Dictionary.load(dictionary))
    assert "2 cell(s) are no level of the dictionary: 'divers'" in drafted.asks["sex"][0]
    named = draft_column_map(table, Dictionary.load(dictionary), missing=["sex=divers"])
    assert named.settings["sex"]["missing"] == ["divers"]
    assert "sex" not in named.asks


def test_a_word_that_may_be_a_level_is_asked_about_and_makes_no_row_incomplete(tmp_path: Path) -> None:
    """none is no treatment rather than not known: who has it must not be left out in silence."""
    (tmp_path / "dictionary.toml").write_text(
        '[arm]\nkind = "nominal"\nlevels = ["no treatment", "drug a", "drug b"]\n[age]\n', encoding="utf-8"
    )
    table = tmp_path / "trial.csv"
    rows = [f"{('none', 'drug a', 'drug b')[k % 3]},{20 + k if k % 10 else '-'}" for k in range(60)]
    table.write_text("\n".join(["arm,age", *rows]) + "\n", encoding="utf-8")
    drafted = draft_column_map(table, Dictionary.load(tmp_path / "dictionary.toml"))
    assert "20 cell(s) are no level of the dictionary: 'none'" in drafted.asks["arm"][0]
    assert drafted.settings["age"]["missing"] == ["-"], "of this column alone"


def test_what_becomes_of_a_cell_does_not_depend_on_other_cells(tmp_path: Path) -> None:
    """Otherwise a mapping made from a table would make each record depend on the others."""
    table, dictionary = written(tmp_path)
    whole = draft_column_map(table, Dictionary.load(dictionary))
    written(tmp_path, rows=ROWS[31:])
    part = draft_column_map(table, Dictionary.load(dictionary))
    for name, settings in part.settings.items():
        for level, texts in settings.get("levels", {}).items():
            assert set(texts) <= set(whole.settings[name]["levels"][level])
    assert set(part.missing) <= set(whole.missing)


def test_columns_that_are_not_there_are_named_and_the_rest_is_drafted(tmp_path: Path) -> None:
    table, dictionary = written(tmp_path)
    dictionary.write_text(WARD + "[weight]\n", encoding="utf-8")
    arguments = ["data", "dictionary", str(table), "--dictionary", str(dictionary), "--json"]
    told = json.loads(CliRunner().invoke(fedbnsl, arguments).stdout)
    (found,) = told.values()
    assert "no column is called so here" in found["to_decide"]["weight"][0]
    assert found["columns"]["age"] == {"column": "Age"}
    assert ColumnMap.load(tmp_path / "ward.columns.toml").root["smoker"].column == "Smoker"


def test_a_column_and_a_level_that_only_seem_to_be_meant_are_asked_about(tmp_path: Path) -> None:
    (tmp_path / "dictionary.toml").write_text(
        '["CD4+"]\n[heart_rate]\n[bmi]\n[smoker]\nkind = "binary"\nlevels = ["no", "yes"]\n', encoding="utf-8"
    )
    table = tmp_path / "ward.csv"
    rows = [f"{k}.5,{60 + k}.5,{20 + k}.5,{('J', 'N', 'Yes')[k % 3]}" for k in range(60)]
    table.write_text("\n".join(["CD4-,Heart Rate,bmi2,smoker", *rows]) + "\n", encoding="utf-8")
    drafted = draft_column_map(table, Dictionary.load(tmp_path / "dictionary.toml"))
    assert drafted.settings["heart_rate"] == {"column": "Heart Rate"}
    assert {"CD4+", "bmi"}.isdisjoint(drafted.settings)
    assert "is it 'CD4-', which is called nearly so?" in drafted.asks["CD4+"][0]
    assert "is it 'bmi2', which is called nearly so?" in drafted.asks["bmi"][0]
    assert drafted.settings["smoker"]["levels"] == {"no": ["no", "N"], "yes": ["yes", "J", "Yes"]}
    assert drafted.asks["smoker"] == [
        "'N': taken for the level 'no', as a word like it says; is it so here?",
        "'J': taken for the level 'yes', as a word like it says; is it so here?",
    ]


def test_a_number_that_may_be_a_code_is_asked_about_unless_it_lies_outside_the_range(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("score,bounded\n" + "".join(f"{k},{k}\n" for k in [*range(11), 99] * 5), encoding="utf-8")
    described = Dictionary.from_plain({"score": {}, "bounded": {"range": [0, 10]}}, origin="x")
    asked = draft_column_map(table, described).asks
    said = "5 cell(s) are 99, far from all others: if it stands for a missing value, name it under `missing`"
    assert asked == {"score": [said]}


def test_columns_that_tell_which_rows_belong_together_are_drafted_too(tmp_path: Path) -> None:
    described = Dictionary.parse(
        '[patient]\nkind = "group"\n[visit]\nkind = "time"\nlags = 1\n[age]\n[crp]\n', origin="here"
    )
    table = tmp_path / "ward.csv"
    rows = [f"p{k % 7},{1 + k % 28:02d}.01.2024,{k},{k * k % 13}" for k in range(60)]
    table.write_text("\n".join(["Patient,Visit,age,crp", *rows]) + "\n", encoding="utf-8")
    found = draft_column_map(table, described)
    assert found.settings == {"patient": {"column": "Patient"}, "visit": {"column": "Visit"}}
    assert list(found.asks) == ["visit"]
    assert "say how times are written here, such as format = '%d.%m.%Y'" in found.asks["visit"][0]
