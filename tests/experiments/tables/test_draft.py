"""A drafted dictionary: kinds guessed, levels of all tables, ranges left open, nothing without a confirmation."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedbnsl.cli import fedbnsl
from fedbnsl.plan.dictionary import Dictionary

TABLE = {
    "height": ["1.71", "1.8", "NA", "1.65", "1.9", "1.77"],
    "sex": ["m", "f", "f", "", "m", "f"],
    "flag": ["0", "1.0", "1", "0", "1", "NaN"],
    "group": ["B", "0", "A", "AB", "A", "B"],
    "visits": ["0", "3", "12", "7", "9", "4"],
    "site": ["x"] * 6,
}


def write(path: Path, table: dict[str, list[str]]) -> Path:
    rows = [table.keys(), *zip(*table.values(), strict=True)]
    path.write_text("\n".join(map(",".join, rows)) + "\n", encoding="utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(fedbnsl, ["data", "dictionary", *map(str, arguments)])


def test_kinds_are_guessed_and_ranges_are_left_open(tmp_path: Path) -> None:
    out = tmp_path / "dictionary.toml"
    found = run(write(tmp_path / "a.csv", TABLE), "--public-data", "--out", out)
    assert found.exit_code == 0, found.output
    said = {name: (entry.kind, entry.levels) for name, entry in Dictionary.load(out).items()}
    assert said == {
        "height": ("continuous", ()),
        "sex": ("binary", ("f", "m")),
        "flag": ("binary", ("0", "1")),
        "group": ("nominal", ("0", "A", "AB", "B")),
        "visits": ("count", ()),
    }
    text = out.read_text(encoding="utf-8")
    assert all(entry.range is None and not entry.unit for _, entry in Dictionary.load(out).items())
    assert text.splitlines()[0] == "# A draft, made from tables that anybody may see: a.csv."
    assert text.count("# range = [lowest, highest]") == 2
    assert not {"1.65", "1.9", "12"} & set(text.replace(",", " ").split()), "no value of the table"
    assert "# site: left out: it has no two values" in text
    assert "it is ordinal" in text.partition("[group]")[2].partition("[visits]")[0]


def test_levels_are_those_of_all_tables_and_other_columns_are_told(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", TABLE)
    second = write(tmp_path / "b.csv", {"height": ["1.5", "1.6"], "group": ["C", "A"], "sex": ["f", "x"]})
    found = run(first, second, "--public-data", "--json", "--out", tmp_path / "d.toml")
    told = json.loads(found.stdout)
    assert told["variables"]["group"]["levels"] == ["0", "A", "AB", "B", "C"]
    assert told["variables"]["sex"] == {"kind": "nominal", "levels": ["f", "m", "x"]}
    assert told["lacking"] == {"flag": ["b.csv"], "visits": ["b.csv"], "site": ["b.csv"]}
    assert told["left_out"] == ["site"]
    assert "# not in b.csv" in (tmp_path / "d.toml").read_text(encoding="utf-8").partition("[flag]")[2]


def test_names_identifiers_and_codes_among_numbers_are_left_to_a_person(tmp_path: Path) -> None:
    table = {
        "name": [f"N{k}" for k in range(100)],
        "id": [str(k) for k in range(100)],
        "x": [f"{k / 7:.3f}" for k in range(97)] + ["unknown"] * 3,
        "grade": [str(k % 4) for k in range(100)],
    }
    found = run(write(tmp_path / "a.csv", table), "--public-data", "--out", tmp_path / "d.toml")
    assert found.exit_code == 0
    text = (tmp_path / "d.toml").read_text(encoding="utf-8")
    assert "# name: left out: more than 20 different texts" in text
    assert "an identifier is no variable" in text.partition("[id]")[2].partition("[")[0] + text
    assert "3 cell(s) are no numbers ('unknown')" in text
    assert 'if they are grades, it is ordinal, and if they are codes, nominal: levels = ["0", "1", "2", "3"]' in text
    assert Dictionary.load(tmp_path / "d.toml")["x"].kind == "continuous"


def test_nothing_is_drafted_without_a_confirmation_or_over_another_file(tmp_path: Path) -> None:
    table, out = write(tmp_path / "a.csv", TABLE), tmp_path / "dictionary.toml"
    found = run(table, "--out", out)
    assert found.exit_code != 0
    assert "--public-data" in str(found.exception)
    assert not out.exists()
    out.write_text("mine", encoding="utf-8")
    found = run(table, "--public-data", "--out", out)
    assert "is there already" in str(found.exception)
    assert out.read_text(encoding="utf-8") == "mine"


def test_names_and_levels_that_need_quotes_survive(tmp_path: Path) -> None:
    table = {'"a ""b"" [mg.l]"': ["1.5", "2.5"], "Größe": ["groß", "klein"]}
    found = run(write(tmp_path / "a.csv", table), "--public-data", "--out", tmp_path / "d.toml")
    assert found.exit_code == 0, found.exception
    dictionary = Dictionary.load(tmp_path / "d.toml")
    assert dictionary.variables == ('a "b" [mg.l]', "Größe")
    assert dictionary["Größe"].levels == ("groß", "klein")


def test_a_row_of_another_width_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n1\n", encoding="utf-8")
    found = run(path, "--public-data", "--out", tmp_path / "d.toml")
    assert "line 3: 1 cells; expected 2" in str(found.exception)


@pytest.mark.parametrize("word", ["may see", "Never use it on private tables"])
def test_the_help_says_what_it_is_for(word: str) -> None:
    assert word in " ".join(run("--help").output.split())
