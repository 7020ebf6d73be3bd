"""A drafted dictionary: kinds, levels and missing codes guessed, ranges left open, nothing without a confirmation."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedbnsl.cli import fedbnsl
from fedbnsl.errors import ResultError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.drafts.dictionary_draft import Draft, draft
from fedbnsl_client.data.reading import ColumnMap

TABLE = {
    "height": ["1.71", "1.8", "NA", "1.65", "1.9", "1.77"],
    "sex": ["m", "f", "f", "", "m", "f"],
    "flag": ["0", "1.0", "1", "0", "1", "NaN"],
    "group": ["B", "0", "A", "AB", "A", "B"],
    "visits": ["0", "3", "12", "7", "9", "4"],
    "site": ["x"] * 6,
}
N = 400
DRAWN = np.random.default_rng(5)


def write(path: Path, table: Mapping[str, Sequence[str]]) -> Path:
    rows = [table.keys(), *zip(*table.values(), strict=True)]
    path.write_text("\n".join(map(",".join, rows)) + "\n", encoding="utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(fedbnsl, ["data", "dictionary", *map(str, arguments)])


def drafted(folder: Path, table: Mapping[str, Sequence[str]], **options: object) -> Draft:
    """Of a table with a column of measurements beside those that are named."""
    beside = {"measured": [f"{x:.3f}" for x in DRAWN.normal(size=len(next(iter(table.values()))))]}
    return draft([write(folder / "a.csv", {**beside, **table})], **options)  # type: ignore[arg-type]


def whole(numbers: Sequence[int] | np.ndarray) -> list[str]:
    return [str(int(number)) for number in numbers]


def test_kinds_are_guessed_and_ranges_are_left_open(tmp_path: Path) -> None:
    out = tmp_path / "dictionary.toml"
    found = run(write(tmp_path / "a.csv", TABLE), "--public-data", "--out", out)
    assert found.exit_code == 0, found.output
    said = {name: (entry.kind, entry.levels) for name, entry in Dictionary.load(out).items()}
    assert said == {
        "height": ("continuous", ()),
        "sex": ("binary", ("f", "m")),
        "flag": ("binary", ("0", "1")),
        "group": ("nominal", ("A", "0", "AB", "B")),
        "visits": ("continuous", ()),
    }
    text = out.read_text(encoding="utf-8")
    assert all(entry.range is None and not entry.unit for _, entry in Dictionary.load(out).items())
    assert text.splitlines()[0] == "# A draft, made from tables that anybody may see: a.csv."
    assert text.count("# range = [lowest, highest]") == 2
    assert not {"1.65", "1.9", "12"} & set(text.replace(",", " ").split()), "no value of the table"
    assert "# site: left out: it has no two values" in text
    assert "it is ordinal" in text.partition("[group]")[2].partition("[visits]")[0]
    assert not (tmp_path / "a.columns.toml").exists(), "nothing differs"


@pytest.mark.parametrize(
    ("cells", "levels"),
    [
        (["never", *["alive"] * 29], ("alive", "never")),
        (["alive", *["never"] * 29], ("never", "alive")),
        (["no", *["yes"] * 29], ("no", "yes")),
        (["Positive", *["absent"] * 29], ("absent", "Positive")),
        (["+", "+", "-"] * 10, ("-", "+")),
        (["2", *["1"] * 29], ("1", "2")),
    ],
)
def test_of_two_levels_no_comes_first_or_else_the_most_frequent_and_it_is_said_which_counts_as_1(
    tmp_path: Path, cells: list[str], levels: tuple[str, str]
) -> None:
    found = drafted(tmp_path, {"died": cells, "x": [f"{k}.5" for k in range(30)]})
    assert found.guesses["died"].levels == levels
    assert f"'{levels[1]}' counts as 1: turn the levels around if the other should" in found.text
    assert f"binary: died ('{levels[1]}' counts as 1)" in list(found.said())


def test_the_most_frequent_level_is_the_one_that_others_are_compared_with(tmp_path: Path) -> None:
    found = drafted(tmp_path, {"arm": ["drug b", "placebo", "drug a", "placebo", "drug b", "placebo"] * 10})
    assert found.guesses["arm"].levels == ("placebo", "drug a", "drug b")
    assert "'placebo' comes first: coefficients compare the others with it" in found.text


def test_levels_are_those_of_all_tables_and_other_columns_are_told(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", TABLE)
    second = write(tmp_path / "b.csv", {"height": ["1.5", "1.6"], "group": ["C", "A"], "sex": ["f", "x"]})
    found = run(first, second, "--public-data", "--json", "--out", tmp_path / "d.toml")
    told = json.loads(found.stdout)
    assert told["variables"]["group"]["levels"] == ["A", "0", "AB", "B", "C"]
    assert told["variables"]["sex"] == {"kind": "nominal", "levels": ["f", "m", "x"]}
    assert told["lacking"] == {"flag": ["b.csv"], "visits": ["b.csv"], "site": ["b.csv"]}
    assert told["left_out"] == {"site": "it has no two values"}
    assert "# not in b.csv" in (tmp_path / "d.toml").read_text(encoding="utf-8").partition("[flag]")[2]


# ---- kinds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (whole(DRAWN.integers(18, 90, N)), "continuous"),  # ages: no zeros
        (whole(DRAWN.integers(0, 18, N)), "continuous"),  # ages of children: zeros, but no tail
        (whole(DRAWN.negative_binomial(1, 0.1, N)), "count"),  # days in hospital
        (whole(DRAWN.integers(1, 5, N)), "ordinal"),
        (whole(DRAWN.integers(-2, 3, N)), "ordinal"),
        (whole(DRAWN.choice([10, 21, 35, 50], N)), "nominal"),
        (whole(DRAWN.choice([1, 2], N)), "binary"),
        (["y" if x else "n" for x in DRAWN.integers(0, 2, N)], "binary"),
        ([f"{x:.1f}" for x in DRAWN.choice([0.5, 1.0, 1.5], N)], "continuous"),
        (whole([3, 5, 9, 4, 8, 11, 30, 2, 7, 6]), "continuous"),  # ten rows tell nothing of grades
    ],
)
def test_whole_numbers_are_what_their_values_say(column: list[str], kind: str, tmp_path: Path) -> None:
    assert drafted(tmp_path, {"x": column}).guesses["x"].kind == kind


def test_a_count_says_that_it_is_used_as_a_logarithm_in_the_file_and_on_the_terminal(tmp_path: Path) -> None:
    table = {"days": whole(DRAWN.negative_binomial(1, 0.1, N)), "age": whole(DRAWN.integers(18, 90, N))}
    found = run(write(tmp_path / "a.csv", table), "--public-data", "--out", tmp_path / "d.toml")
    assert "count: days (log1p)" in found.output
    assert "used as log(1 + count)" in found.output
    text = (tmp_path / "d.toml").read_text(encoding="utf-8")
    assert 'transform = "log1p"' in text
    assert all("another transform can turn directions" in said for said in (found.output, text))
    assert "# " in next(line for line in text.splitlines() if "log(1 + count)" in line)


def test_dates_names_and_identifiers_are_no_levels(tmp_path: Path) -> None:
    table = {
        "name": [f"N{k}" for k in range(N)],
        "few_names": [*(f"N{k}" for k in range(12)), *[""] * (N - 12)],
        "born": [f"{1 + k % 12:02d}.03.19{k % 90:02d}" for k in range(N)],
        "seen": [("2024-01-03", "2024-02-03")[k % 2] for k in range(N)],
        "compact": [f"2024{1 + k % 12:02d}15" for k in range(N)],
        "row": whole(DRAWN.permutation(N)),
        "patient": whole(DRAWN.choice(10**7, N, replace=False)),
    }
    found = drafted(tmp_path, table)
    assert not any(found.guesses[name].is_used for name in table)
    reasons = {name: found.guesses[name].left_out for name in table}
    assert all("a text of its own" in reasons[name] for name in ("name", "few_names"))
    assert all("dates" in reasons[name] for name in ("born", "seen", "compact"))
    assert all("none of them twice" in reasons[name] for name in ("row", "patient"))
    text = found.text
    assert "# [row]\n# kind" in text, "the entry is ready where it is a variable after all"


def test_a_row_number_of_many_rows_is_seen_and_a_sampling_weight_asked_about(tmp_path: Path) -> None:
    n = 3000
    table = {"row": whole(DRAWN.permutation(n)), "fnlwgt": whole(DRAWN.integers(10_000, 15_000, n))}
    found = drafted(tmp_path, table)
    assert "row number" in found.guesses["row"].left_out
    assert found.guesses["fnlwgt"].is_used
    assert "sampling weight" in found.guesses["fnlwgt"].asks[0]


@pytest.mark.parametrize("n", [1000, 3000, 5000])
@pytest.mark.parametrize("unit", [1, 10, 1000])
def test_measurements_of_large_spread_are_neither_identifiers_nor_codes(n: int, unit: int, tmp_path: Path) -> None:
    platelets = np.maximum(DRAWN.normal(260_000, 90_000, n) // unit, 20_000 // unit) * unit
    found = drafted(tmp_path, {"platelets": whole([*platelets, *platelets[:3]])}).guesses["platelets"]
    assert (found.kind, found.left_out, found.asks) == ("continuous", "", ())


def test_whole_numbers_are_asked_about_as_row_numbers_by_the_rule_of_a_site(tmp_path: Path) -> None:
    """By table: row numbers of three sites begin at 1 in each of them."""
    tables = [
        {"no": whole(range(1, 31)), "dose": whole(range(1550, 50, -50)), "age": whole(np.arange(30) % 29)}
        for _ in range(3)
    ]
    paths = [write(tmp_path / f"site-{k}.csv", table) for k, table in enumerate(tables)]
    found = draft(paths)
    asked = {name: [*one.asks, one.left_out] for name, one in found.guesses.items()}
    assert "an identifier or row number?" in asked["no"][-1]
    assert any("twice: an identifier is no variable" in ask for ask in asked["dose"])
    assert not any("identifier" in ask for ask in asked["age"])
    odd = [one.text for one in Dataset.read(paths[0], warn=False).odd if "Is it a row number" in one.text]
    assert [text.split("'")[1] for text in odd] == ["no", "dose"]


def test_several_rows_of_one_patient_are_asked_about_and_a_count_of_patients_is_not(tmp_path: Path) -> None:
    patient = [k * 7 % (N // 4) for k in range(N)]
    table = {
        "patient_id": whole([10_007 * k + 13 for k in patient]),
        "subject": [f"P-{k:04d}" for k in patient],
        "patients_a_day": whole(DRAWN.integers(20, 90, N)),
        "mrn": whole(DRAWN.choice(10**7, N, replace=False)),
    }
    found = drafted(tmp_path, table)
    asked = "100 values in 400 rows: do several rows belong to one patient?"
    assert all(found.guesses[name].left_out.startswith(asked) for name in ("patient_id", "subject"))
    assert next(line for line in found.said() if asked in line).startswith("  patient_id, subject: ")
    others = [found.guesses[name] for name in ("patients_a_day", "mrn")]
    assert not any("one patient" in text for one in others for text in (*one.asks, one.left_out))


def test_what_tells_rows_of_a_patient_apart_and_orders_them_is_proposed_as_a_comment(tmp_path: Path) -> None:
    table = {
        "subject": [f"P-{k * 7 % (N // 4):04d}" for k in range(N)],
        "seen": [f"2024-01-{1 + k // (N // 4):02d}" for k in range(N)],
        "a": [repr(float(value)) for value in DRAWN.standard_normal(N)],
        "b": [repr(float(value)) for value in DRAWN.standard_normal(N)],
    }
    text = drafted(tmp_path, table).text
    assert not Dictionary.parse(text, origin="the draft").rows
    for name in ("subject", "seen"):
        lines = text.splitlines()
        start = lines.index(f"# [{name}]")
        text = "\n".join(
            [*lines[:start], *(line.removeprefix("# ") for line in lines[start : start + 2]), *lines[start + 2 :]]
        )
    rows = Dictionary.parse(text, origin="the draft, with the proposals taken in").rows
    assert (rows.group, rows.time, rows.within) == ("subject", "seen", "between")


def test_codes_of_many_digits_are_asked_about_and_costs_of_many_values_are_not(tmp_path: Path) -> None:
    table = {
        "area": whole(10_000 + 37 * DRAWN.integers(0, 30, N)),
        "zip": whole(DRAWN.integers(100, 900, N)),
        "diagnosis_code": whole(DRAWN.integers(1, 9, N)),
        "cost": whole([*range(300, 300 + 220), *range(300, 300 + N - 220)]),
        "encoded": whole(DRAWN.integers(0, 60, N)),
    }
    found = drafted(tmp_path, table)
    asked = [name for name in table if any("a code, such as a postcode" in ask for ask in found.guesses[name].asks)]
    assert asked == ["area", "zip", "diagnosis_code"]
    assert not found.guesses["cost"].asks


def test_columns_that_are_functions_of_each_other_are_named(tmp_path: Path) -> None:
    city = DRAWN.integers(0, 8, N)
    table = {
        "town": [f"town {k}" for k in city],
        "code": whole(city),
        "region": [("north", "south", "west")[k % 3] for k in city],
        "unrelated": whole(DRAWN.integers(0, 8, N)),
    }
    found = drafted(tmp_path, table)
    assert found.guesses["town"].left_out == "one-to-one with 'code', which stays: the same variable twice"
    assert found.guesses["code"].is_used
    assert any("an exact function of 'code'" in ask for ask in found.guesses["region"].asks)
    assert not found.guesses["unrelated"].asks
    assert not any("one person" in ask for guess in found.guesses.values() for ask in guess.asks)
    assert not any("function" in ask for ask in found.guesses["code"].asks)


@pytest.mark.parametrize(("n_together", "is_told"), [(0, False), (4, False), (100, True)])
def test_columns_are_called_functions_of_each_other_by_the_rows_alone_that_have_both(
    n_together: int, is_told: bool, tmp_path: Path
) -> None:
    city = [k % 8 for k in range(N)]
    table = {
        "code": ["" if k >= (N + n_together) // 2 else str(city[k]) for k in range(N)],
        "region": ["" if k < (N - n_together) // 2 else ("north", "south", "west")[city[k] % 3] for k in range(N)],
    }
    asks = drafted(tmp_path, table).guesses["region"].asks
    assert any("an exact function of 'code'" in ask for ask in asks) == is_told


def test_a_measured_value_that_is_one_to_one_with_another_column_asks_for_several_rows_of_one_person(
    tmp_path: Path,
) -> None:
    person = DRAWN.integers(0, 8, N)
    table = {
        "patient": whole(person),
        "age_at_start": [f"{20.5 + 3.25 * k}" for k in person.tolist()],
        "weight": [f"{x:.1f}" for x in DRAWN.normal(70.0, 10.0, N).tolist()],
    }
    found = drafted(tmp_path, table)
    asks = {name: "".join(guess.asks) for name, guess in found.guesses.items() if guess.is_used}
    assert [name for name, ask in asks.items() if "several rows of one person" in ask] == ["patient"]
    assert "'age_at_start'" in asks["patient"]


def test_columns_that_are_sums_of_others_are_named_with_what_they_are(tmp_path: Path) -> None:
    items = DRAWN.integers(0, 4, (N, 3))
    before, after = 60 + np.round(9 * DRAWN.normal(size=(2, N)), 1)
    table = {
        "score": ["?" if k == 7 else str(total) for k, total in enumerate(items.sum(axis=1))],
        **{f"item {k + 1}": whole(items[:, k]) for k in range(3)},
        "before": [f"{x:.1f}" for x in before],
        "after": [f"{x:.1f}" for x in after],
        "gain": [f"{x:.1f}" for x in after - before],
        "pounds": [f"{2.25 * x + 32:.3f}" for x in before],
        "about": [f"{x:.0f}" for x in before + after],
        "word": [("yes", "no")[k % 2] for k in range(N)],
    }
    found = drafted(tmp_path, table)
    sums = {name: [ask for ask in one.asks if "equals" in ask] for name, one in found.guesses.items()}
    named = {name: asks[0].removeprefix("equals ").split(" in these tables")[0] for name, asks in sums.items() if asks}
    assert named == {
        "score": "'item 1' + 'item 2' + 'item 3'",
        "after": "'before' + 'gain'",
        "pounds": "2.25 x 'before' + 32",
    }
    assert any("score: equals 'item 1'" in line for line in found.said())


@pytest.mark.parametrize("n", [300, 6000])
def test_a_sum_that_one_row_contradicts_is_none(n: int, tmp_path: Path) -> None:
    """The last of them, which is read in another block than the first."""
    a, b = DRAWN.integers(0, 50, (2, n))
    total = [*(a + b)[:-1], a[-1] + b[-1] + 1]
    found = drafted(tmp_path, {"a": whole(a), "b": whole(b), "total": whole(total)})
    assert not any("equals" in line for line in found.said())
    found = drafted(tmp_path, {"a": whole(a), "b": whole(b), "total": whole(a + b)})
    assert sum("total: equals 'a' + 'b'" in line for line in found.said()) == 1


def test_more_columns_than_rows_are_no_sums_of_each_other(tmp_path: Path) -> None:
    table = {f"x{k}": [f"{x:.3f}" for x in DRAWN.normal(size=25)] for k in range(30)}
    assert not any("equals" in line for line in drafted(tmp_path, table).said())


def test_columns_that_differ_in_a_few_rows_are_no_sums_of_each_other(tmp_path: Path) -> None:
    rare = np.where(np.arange(N) < 5, 1 + np.arange(N), 0)
    table = {"rare": whole(rare), "twice": whole(2 * rare), "x": [f"{x:.3f}" for x in DRAWN.normal(size=N)]}
    assert not any("equals" in line for line in drafted(tmp_path, table).said())


# ---- missing values ------------------------------------------------------------------------------------------------


def test_a_mark_that_may_be_a_level_elsewhere_is_missing_in_its_own_column_alone(tmp_path: Path) -> None:
    table = {"crp": [str(k % 41) if k % 9 else "-" for k in range(60)], "age": [str(20 + k % 50) for k in range(60)]}
    assert drafted(tmp_path, table).column_map(tmp_path / "a.csv") == '[crp]\nmissing = ["-"]\n'


def test_marks_of_missing_values_are_found_counted_and_read_by_the_column_map(tmp_path: Path) -> None:
    rows = range(N)
    table = {
        "lab": ["*" if k % 40 == 0 else f"{DRAWN.normal():.2f}" for k in rows],
        "grade": ["?" if k % 100 == 0 else str(k % 3) for k in rows],
        "work": ["?" if k % 50 == 0 else ("private", "state", "self")[k // 3 % 3] for k in rows],
        "late": ["ask doctor" if k in (3, 4) else f"{DRAWN.normal():.2f}" for k in rows],
        "limit": ["<0.1" if k in (5, 6, 7) else f"{DRAWN.normal():.2f}" for k in rows],
        "result": [("-", "+")[k % 2] for k in rows],
    }
    path, out = write(tmp_path / "a.csv", table), tmp_path / "d.toml"
    found = run(path, "--public-data", "--out", out)
    assert found.exit_code == 0, found.output
    dictionary = Dictionary.load(out)
    assert (dictionary["grade"].kind, dictionary["work"].levels) == ("ordinal", ("private", "self", "state"))
    assert dictionary["result"].levels == ("-", "+"), "a minus beside a plus is a result"
    assert "'*': 10 cell(s) (lab 10)" in found.output
    assert "'?': 12 cell(s) (grade 4, work 8)" in found.output
    assert "limit: 3 cell(s) among its numbers are limits, such as <0.1 ('<0.1')" in found.output
    here = ColumnMap.load(tmp_path / "a.columns.toml")
    assert set(here.missing) == {"*", "?"}
    read = Dataset.read(path, dictionary=dictionary, mapping=here, warn=False)
    assert read.gaps.by_variable == {"lab": 10, "grade": 4, "work": 8, "late": 2, "limit": 3}


def test_a_word_for_not_known_is_missing_with_a_line_that_tells_how_to_keep_it_as_a_level(tmp_path: Path) -> None:
    """As the line says, so the edited files do."""
    table = {
        "smoker": ["Unknown" if k % 8 == 0 else "?" if k % 8 == 1 else ("never", "daily")[k % 2] for k in range(N)],
        "type": ["N/A" if k % 20 == 2 else "null" if k % 20 == 3 else f"type {k % 3}" for k in range(N)],
    }
    found = drafted(tmp_path, table)
    assert found.guesses["smoker"].levels == ("daily", "never")
    said = [line for line in found.said() if "keep it as a level" in line]
    assert len(said) == 1
    assert said[0].startswith("  smoker: 50 cell(s) say 'Unknown' and count as missing.")
    dictionary, here = found.write(tmp_path / "d.toml")
    text, map_text = dictionary.read_text(encoding="utf-8"), here.read_text(encoding="utf-8")
    assert "say 'Unknown' and count as missing" in text
    with_level = Dictionary.parse(
        text.replace('kind = "binary"', 'kind = "nominal"').replace('["daily", ', '["Unknown", "daily", '), origin="x"
    )
    here.write_text(map_text.replace('"Unknown", ', "").replace(', "Unknown"', ""), encoding="utf-8")
    read = Dataset.read(tmp_path / "a.csv", dictionary=with_level, mapping=ColumnMap.load(here), warn=False)
    assert read.gaps.by_variable == {"smoker": 50, "type": 40}


def test_numbers_with_many_limits_are_no_texts_and_the_entry_is_ready_behind_a_sign(tmp_path: Path) -> None:
    table = {"crp": ["<0.5" if k % 6 == 0 else f"{DRAWN.uniform(0.5, 50):.2f}" for k in range(300)]}
    found = drafted(tmp_path, table)
    assert found.guesses["crp"].left_out.startswith("50 of 300 cells are limits, such as '<0.5': write a number")
    assert '# [crp]\n# kind = "continuous"' in found.text
    named = drafted(tmp_path, table, missing=["crp=<0.5"])
    assert named.guesses["crp"].kind == "continuous"
    assert dict(named.guesses["crp"].missing) == {"<0.5": 50}


def test_a_code_can_be_named_for_all_columns_or_for_one(tmp_path: Path) -> None:
    a, b, c = (
        ["-9", "1", "2", "3"] * 100,
        ["7", "1", "2", "3", "7", "2", "3", "1"] * 50,
        ["7", "8", "9", "-9", "8", "-9", "7", "9"] * 50,
    )
    table = {"a": a, "b": b, "c": [*c[:200], *sorted(c[200:])]}
    found = drafted(tmp_path, table, missing=["-9", "b=7"])
    assert {name: dict(found.guesses[name].missing) for name in "abc"} == {
        "a": {"-9": 100},
        "b": {"7": 100},
        "c": {"-9": 100},
    }
    assert [found.guesses[name].levels for name in "abc"] == [("1", "2", "3"), ("1", "2", "3"), ("7", "8", "9")]
    here = found.column_map(tmp_path / "a.csv")
    assert here == 'missing = ["-9"]\n\n[b]\nmissing = ["7"]\n'


@pytest.mark.parametrize("code", ["9,9", "crp=9,9", "9.9"])
def test_a_code_with_a_decimal_comma_is_missing_in_the_draft_as_at_a_site(code: str, tmp_path: Path) -> None:
    crp = ["9,9" if k % 10 == 0 else f"0,{k % 97:02d}1" for k in range(N)]
    table = tmp_path / "a.csv"
    table.write_text("crp;age\n" + "\n".join(f"{cell};{k % 60},25" for k, cell in enumerate(crp)), encoding="utf-8")
    found = draft([table], missing=[code])
    assert dict(found.guesses["crp"].missing) == {code.removeprefix("crp="): N // 10}
    assert found.rows[table] == (N, N - N // 10)
    assert not any(line.startswith("--missing") for line in found.said())
    (tmp_path / "a.columns.toml").write_text(found.column_map(tmp_path / "a.csv"), encoding="utf-8")
    mapping = ColumnMap.load(tmp_path / "a.columns.toml")
    read = Dataset.read(table, dictionary=Dictionary.parse(found.text, origin="x"), mapping=mapping, warn=False)
    assert read.gaps.by_variable == {"crp": N // 10}


def test_a_named_code_that_no_cell_has_is_said_and_so_is_a_column_that_is_not_there(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("age,falls\n" + "\n".join(f"{20 + k % 60},{k % 3}" for k in range(N)), encoding="utf-8")
    said = list(draft([table], missing=["Age=99", "1", "-7", "falls=2"]).said())
    assert "--missing: no cell is 'Age=99', and no column is called 'Age'" in said
    assert "--missing: no cell is '-7'" in said
    assert sum(line.startswith("--missing") for line in said) == 2


def test_the_lowest_of_a_few_scores_is_not_far_from_the_others(tmp_path: Path) -> None:
    asks = drafted(tmp_path, {"x": whole(np.arange(N) % 5)}).guesses["x"].asks
    assert not any("missing value" in text for text in asks)


@pytest.mark.parametrize("values", [(-1, 0, 1), (5, 6, 7), (7, 8, 9)])
def test_whole_numbers_next_to_each_other_are_no_codes(values: tuple[int, ...], tmp_path: Path) -> None:
    found = drafted(tmp_path, {"x": whole(np.resize(values, N))}).guesses["x"]
    assert not any("missing value" in text for text in found.asks)
    assert not any("missing value" in text for text in Dataset.read(tmp_path / "a.csv", warn=False).remarks())


def test_a_code_near_the_others_is_asked_about_where_it_is_far_more_frequent(tmp_path: Path) -> None:
    ages = whole(DRAWN.integers(18, 97, N))
    asks = drafted(tmp_path, {"x": [*ages, *["99"] * (N // 8)]}).guesses["x"].asks
    assert f"{N // 8} cell(s) are 99, far more than any other number: does it stand for a missing value?" in asks
    assert not drafted(tmp_path, {"x": [*ages, "99"]}).guesses["x"].asks
    marks = [f"{mark:.1f}" for mark in DRAWN.uniform(0, 9, N)]  # many have the best one
    assert not drafted(tmp_path, {"x": [*marks, *["9.0"] * (N // 4)]}).guesses["x"].asks


@pytest.mark.parametrize("code", ["999", "-9", "0"])
def test_a_number_far_from_all_others_is_asked_about(code: str, tmp_path: Path) -> None:
    column = [*whole(DRAWN.integers(60, 140, N)), code, code, code]
    asks = drafted(tmp_path, {"x": column}).guesses["x"].asks
    assert asks == (f"3 cell(s) are {code}, far from all others: does it stand for a missing value?",)
    assert not drafted(tmp_path, {"x": column[:N]}).guesses["x"].asks


@pytest.mark.parametrize(("code", "is_asked"), [("999", True), ("-9", True), ("9", True), ("3", False)])
def test_a_code_of_a_missing_value_among_words_is_asked_about(code: str, is_asked: bool, tmp_path: Path) -> None:
    found = drafted(tmp_path, {"x": [*["yes", "no"] * 150, *[code] * 30]}).guesses["x"]
    assert found.kind == "nominal"
    question = f"30 cell(s) are {code}, among words: does it stand for a missing value?"
    assert (question in found.asks) == is_asked


def test_a_code_among_scores_makes_no_count_of_them_and_is_asked_about_at_every_reading(tmp_path: Path) -> None:
    scores = [*whole(DRAWN.integers(0, 11, N)), *["99"] * 9]
    for name, n_codes in (("coded", 9), ("clean", 0)):
        cells = scores[: N + n_codes]
        found = drafted(tmp_path, {name: cells}).guesses[name]
        assert (found.kind, found.transform) == ("continuous", ""), name
        table = write(tmp_path / "b.csv", {name: cells, "x": [f"{x:.3f}" for x in DRAWN.normal(size=len(cells))]})
        for entry in ({}, {"kind": "count"}, {"range": [0, 10]}):
            described = Dictionary.from_plain({name: entry, "x": {}}, origin="x")
            with_code = bool(n_codes) and "range" not in entry  # outside of it, it is missing
            told = [one for one in Dataset.read(table, dictionary=described, warn=False).remarks() if "are 99" in one]
            assert len(told) == with_code
            assert all("column 'coded': 9 cell(s) are 99, far from all others" in one for one in told)
        assert len([one for one in Dataset.read(table, warn=False).remarks() if "are 99" in one]) == bool(n_codes)


@pytest.mark.parametrize("first", [-3, 0, 400])
def test_a_draft_and_the_reading_of_a_table_ask_about_the_same_row_numbers(first: int, tmp_path: Path) -> None:
    cells = whole(first + DRAWN.permutation(60))
    found = drafted(tmp_path, {"x": cells}).guesses["x"]
    told = [one for one in Dataset.read(tmp_path / "a.csv", warn=False).remarks() if "row number" in one]
    assert bool(found.left_out or found.asks) == bool(told) == (first >= 0)


def test_columns_with_many_gaps_are_left_out_so_that_half_of_the_rows_are_complete(tmp_path: Path) -> None:
    table = {
        "often": ["" if k % 10 < 7 else str(k % 7) for k in range(N)],
        "now_and_then": ["" if k % 10 < 3 else str(k % 5) for k in range(N)],
        "then": ["" if k % 10 >= 7 else str(k % 5) for k in range(N)],
        "seldom": ["" if k % 20 == 0 else str(k % 3) for k in range(N)],
    }
    found = drafted(tmp_path, table)
    out = [name for name in table if not found.guesses[name].is_used]
    assert out == ["often"] + ["now_and_then"] * ("now_and_then" in out) + ["then"] * ("then" in out)
    complete = [k for k in range(N) if all(table[name][k] for name in table if name not in out)]
    assert found.rows[tmp_path / "a.csv"] == (N, len(complete))
    assert len(complete) >= N / 2
    assert found.guesses["often"].left_out.startswith("70% of the rows lack it")


def test_a_column_that_one_table_lacks_is_used_and_one_that_most_rows_lack_is_not(tmp_path: Path) -> None:
    full = {name: [f"{x:.3f}" for x in DRAWN.normal(size=100)] for name in "abc"}
    holes = {**full, "b": [""] * 100, "c": ["" if k < 98 else x for k, x in enumerate(full["c"])]}
    mostly = {**full, "c": ["" if k < 10 else x for k, x in enumerate(full["c"])]}
    found = draft([write(tmp_path / "one.csv", mostly), write(tmp_path / "two.csv", holes)])
    assert [name for name in "abc" if found.guesses[name].is_used] == ["a", "b"]
    assert found.guesses["c"].left_out.startswith("54% of the rows lack it")
    said = "\n".join(found.said())
    assert "100 of 200" in said
    assert "`standard` and `private` use the others for the values that they have" in said


def test_a_column_that_may_be_called_otherwise_in_another_table_is_named(tmp_path: Path) -> None:
    names = {"a": ("age", "crp", "hb", "sex"), "b": ("age", "CRP mg/dl", "hgb", "weight")}
    tables = [
        write(tmp_path / f"{table}.csv", {name: [f"{x:.3f}" for x in DRAWN.normal(size=100)] for name in columns})
        for table, columns in names.items()
    ]
    to_decide = "\n".join(draft(tables).said()).partition("to decide:")[2].splitlines()
    asked = {line.split(":")[0].strip(): line for line in to_decide}
    assert "otherwise there (perhaps CRP mg/dl), say" in asked["crp"]
    assert "otherwise there (perhaps crp), say" in asked["CRP mg/dl"]
    assert "otherwise there (perhaps hgb), say" in asked["hb"]
    assert "otherwise there, say" in asked["sex"]


def test_each_table_is_told_what_it_lacks_and_only_the_codes_that_it_has(tmp_path: Path) -> None:
    full = {name: [f"{x:.3f}" for x in DRAWN.normal(size=100)] for name in ("age", "crp")}
    full["work"] = ["state", "private", "self", "none"] * 25
    one = {"age": full["age"], "work": full["work"]}
    two = {**full, "crp": ["<2", *full["crp"][1:]], "work": ["?", *full["work"][1:]]}
    tables = [write(tmp_path / f"{name}.csv", table) for name, table in {"a": one, "b": two, "c": full}.items()]
    found = draft(tables)
    dictionary = Dictionary.parse(found.text, origin="x")
    files = found.write(tmp_path / "d.toml")
    assert [path.name for path in files] == ["d.toml", "a.columns.toml", "b.columns.toml"]
    absent, coded = (path.read_text(encoding="utf-8") for path in files[1:])
    assert '[crp]\nabsent = true\n# if it is called otherwise here: column = "..."' in absent
    assert "missing" not in absent
    assert 'missing = ["?"]' in coded
    assert '[crp]\nmissing = ["<2"]\n# A value below a limit is not missing at random: see docs/how-to/limits' in coded
    for table, path in zip(tables, files[1:], strict=False):
        Dataset.read(table, dictionary=dictionary, mapping=ColumnMap.load(path), warn=False)
    to_decide = "\n".join(found.said()).partition("to decide:")[2]
    assert "crp: not in a.csv, whose columns.toml says absent = true" in to_decide


# ---- levels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grades",
    [
        ("low", "medium", "high"),
        ("none", "mild", "moderate", "Severe"),
        ("never", "sometimes", "often"),
        ("Very Poor", "fair", "good"),
    ],
)
def test_usual_words_for_grades_are_ordinal_in_their_order_with_a_question(
    grades: tuple[str, ...], tmp_path: Path
) -> None:
    cells = list(DRAWN.permutation([*grades] * 60 + [grades[-1]] * 60))
    found = drafted(tmp_path, {"grade": cells}).guesses["grade"]
    assert (found.kind, found.levels) == ("ordinal", grades)
    assert "if they have none, it is nominal" in found.asks[0]


def test_words_of_one_place_or_of_no_scale_are_nominal_and_none_comes_first(tmp_path: Path) -> None:
    table = {"twice": ["mild", "light", "severe"] * 60, "other": ["severe", "severe", "none", "rash"] * 45}
    found = drafted(tmp_path, table)
    assert [found.guesses[name].kind for name in table] == ["nominal", "nominal"]
    assert found.guesses["other"].levels[0] == "none"


def test_more_than_twenty_levels_offer_to_merge_rare_ones_and_are_merged_when_asked(tmp_path: Path) -> None:
    country = ["home"] * 250 + ["near"] * 120 + [f"far {k}" for k in range(30)]
    offered = drafted(tmp_path, {"country": country}).guesses["country"]
    assert offered.left_out.startswith("32 different texts; --merge-rare 20 keeps 2 and makes one")
    merged = drafted(tmp_path, {"country": country}, merge_below=20)
    assert merged.guesses["country"].levels == ("home", "near", "other")
    assert "30 levels in fewer than 20 rows are one, 'other'" in merged.guesses["country"].asks
    files = merged.write(tmp_path / "d.toml")
    read = Dataset.read(
        tmp_path / "a.csv", dictionary=Dictionary.load(files[0]), mapping=ColumnMap.load(files[1]), warn=False
    )
    assert read.X[:, -1].sum() == 30


def test_roman_numerals_are_grades_in_their_order_with_a_question(tmp_path: Path) -> None:
    stages = ["IV", "I", "III", "V", "II"]
    table = {
        "stage": stages * 60,
        "letter": ["I", "V", "X", "C", "M"] * 60,
        "type": ["I", "II", "III", "none", "V"] * 60,
    }
    found = drafted(tmp_path, {name: list(DRAWN.permutation(column)) for name, column in table.items()})
    assert [found.guesses[name].kind for name in table] == ["ordinal", "nominal", "nominal"]
    assert found.guesses["stage"].levels == ("I", "II", "III", "IV", "V")
    assert "if they have none, it is nominal" in found.guesses["stage"].asks[0]


def test_rare_levels_and_spellings_that_differ_in_case_are_said(tmp_path: Path) -> None:
    table = {"smoker": ["Never"] * 300 + ["never"] * 40 + ["NEVER"] * 5 + ["daily"] * 50 + ["pipe"] * 3 + ["cigar"] * 2}
    found = drafted(tmp_path, table)
    assert found.guesses["smoker"].levels == ("Never", "cigar", "daily", "pipe")
    assert any(
        "'NEVER', 'Never', 'never' are taken for the level 'Never'" in ask for ask in found.guesses["smoker"].asks
    )
    assert any("'cigar' 2, 'pipe' 3; --merge-rare 20" in ask for ask in found.guesses["smoker"].asks)
    assert 'levels = { "Never" = ["Never", "never", "NEVER"] }'.replace('"Never" =', "Never =") in found.column_map(
        tmp_path / "a.csv"
    )


def test_grades_stay_grades_where_rare_levels_are_merged(tmp_path: Path) -> None:
    stages = {"stage": ["I", "II"] * 100 + ["III"] * 5 + ["IV"] * 3}
    found = drafted(tmp_path, stages, merge_below=20).guesses["stage"]
    assert (found.kind, found.levels) == ("ordinal", ("I", "II", "III", "IV"))
    assert any("--merge-rare 20: 'III', 'IV' stays, for these are grades" in ask for ask in found.asks)
    assert not any("--merge-rare" in ask for ask in drafted(tmp_path, stages).guesses["stage"].asks)


def test_a_single_rare_level_that_was_to_be_merged_is_told_to_stay(tmp_path: Path) -> None:
    for levels, why in ((["a", "b"], "no other level is rare"), (["a"], "two levels are not made one")):
        asks = drafted(tmp_path, {"x": [*levels * 100, "rare", "rare"]}, merge_below=20).guesses["x"].asks
        assert any(f"--merge-rare 20: 'rare' stays a level of its own, for {why}" in ask for ask in asks)
    assert not any(
        "--merge-rare" in ask for ask in drafted(tmp_path, {"x": ["a", "b"] * 90}, merge_below=20).guesses["x"].asks
    )


# ---- files ---------------------------------------------------------------------------------------------------------


def test_nothing_is_drafted_without_a_confirmation_or_over_another_file(tmp_path: Path) -> None:
    table, out = write(tmp_path / "a.csv", TABLE), tmp_path / "dictionary.toml"
    found = run(table, "--out", out)
    assert found.exit_code != 0
    assert "--public-data" in str(found.exception)
    assert not out.exists()
    out.write_text("mine", encoding="utf-8")
    found = run(table, "--public-data", "--out", out)
    assert isinstance(found.exception, ResultError)
    assert found.exception.remedy == "Replace it with --overwrite, edits and all, or name another file with --out."
    assert out.read_text(encoding="utf-8") == "mine"
    assert run(table, "--public-data", "--overwrite", "--out", out).exit_code == 0
    assert len(Dictionary.load(out).variables) == 5


def test_no_file_is_written_where_one_of_them_is_there(tmp_path: Path) -> None:
    found = drafted(tmp_path, {"x": ["1", "2", "?"] * 10})
    (tmp_path / "a.columns.toml").write_text("mine", encoding="utf-8")
    with pytest.raises(ResultError, match=r"a\.columns\.toml: there already") as refused:
        found.write(tmp_path / "d.toml")
    assert "a column map lies beside its table, wherever --out points" in refused.value.remedy
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.columns.toml", "a.csv"]


def test_names_and_levels_that_need_quotes_survive(tmp_path: Path) -> None:
    table = {'"a ""b"" [mg.l]"': ["1.5", "2.5"], "Größe": ["groß", "klein"]}
    found = run(write(tmp_path / "a.csv", table), "--public-data", "--out", tmp_path / "d.toml")
    assert found.exit_code == 0, found.exception
    dictionary = Dictionary.load(tmp_path / "d.toml")
    assert dictionary.variables == ('a "b" [mg.l]', "Größe")
    assert dictionary["Größe"].levels == ("groß", "klein")


@pytest.mark.parametrize("word", ["may see", "Never use it on private tables"])
def test_the_help_says_what_it_is_for(word: str) -> None:
    assert word in " ".join(run("--help").output.split())


def test_levels_that_no_two_tables_share_are_asked_about(tmp_path: Path) -> None:
    measured = [f"{x:.3f}" for x in DRAWN.normal(size=40)]
    sexes = [["m", "f"] * 20, ["1", "2"] * 20, ["2.0", ""] * 20]
    wards = [["a", "b"] * 20, ["b", "c"] * 20, ["c", "d"] * 20]
    tables = [
        write(tmp_path / f"site-{k}.csv", {"measured": measured, "sex": sex, "ward": ward})
        for k, (sex, ward) in enumerate(zip(sexes, wards, strict=True), start=1)
    ]
    found = draft(tables)
    asked = [ask for ask in found.guesses["sex"].asks if "no table has levels" in ask]
    assert len(asked) == 1
    assert "site-1.csv has 'f', 'm'; site-2.csv, site-3.csv have '1', '2'. If they mean the same" in asked[0]
    assert not any("no table has levels" in ask for ask in found.guesses["ward"].asks)


def test_a_column_that_names_the_site_is_left_out(tmp_path: Path) -> None:
    measured = [f"{x:.3f}" for x in DRAWN.normal(size=40)]
    tables = [
        write(tmp_path / f"site-{k}.csv", {"measured": measured, "hospital": [name] * 40, "ward": [ward, "c"] * 20})
        for k, (name, ward) in enumerate([("north", "a"), ("south", "b"), ("north", "b")])
    ]
    found = draft(tables).guesses
    assert "which site a row is of" in found["hospital"].left_out
    assert found["ward"].is_used


def test_names_of_what_nothing_acts_on_are_asked_for_a_tier(tmp_path: Path) -> None:
    n = 300
    names = ("Age", "sex", "age_at_birth", "blood_group", "stage", "dosage", "image_score")
    found = drafted(tmp_path, {name: list(map(str, DRAWN.normal(50.0, 9.0, n).round(3))) for name in names})
    asked = [name for name in names if any("tier = 1" in ask for ask in found.guesses[name].asks)]
    assert asked == ["Age", "sex", "age_at_birth", "blood_group"]
