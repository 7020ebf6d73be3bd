"""The tables of several sites in one folder: split, numbered, never overwritten."""

import csv
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbnsl.errors import DataError, ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_client.data.site_files import site_files
from fedbnsl_client.data.sources.csv_table import read_header
from fedbnsl_workbench.tables.folder import read_tables, split, tables_for, write_federation
from fedbnsl_workbench.tables.synthetic import synthesise

# Whatever text a table may hold; a lone carriage return, which the csv module of Python 3.11 does not quote, aside.
cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=6)


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    return path


def numbered(path, n_rows):
    """A table whose rows say where they stood."""
    return write(path, [["row", "twice"], *([str(r), f"{2 * r}.50"] for r in range(n_rows))])


def parts_of(folder):
    """Rows of site-1, site-2, ... by plain counting."""
    parts = []
    while (path := folder / f"site-{len(parts) + 1}.csv").exists():
        parts.append(read(path)[1:])
    assert len(list(folder.iterdir())) == len(parts)
    return parts


@pytest.mark.parametrize("seed", [None, 0, 3])
@pytest.mark.parametrize(("n_rows", "n_sites"), [(10, 1), (10, 3), (12, 4), (5, 5), (23, 10)])
def test_every_row_goes_to_exactly_one_site_and_sites_differ_by_at_most_one_row(seed, n_rows, n_sites, tmp_path):
    table = numbered(tmp_path / "table.csv", n_rows)
    sizes = split(table, n_sites, tmp_path / "out", seed=seed)
    parts = parts_of(tmp_path / "out")
    dealt = [tuple(row) for part in parts for row in part]
    assert sorted(dealt) == sorted(tuple(row) for row in read(table)[1:])
    assert sizes == {f"site-{k + 1}": len(part) for k, part in enumerate(parts)}
    assert len(parts) == n_sites
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_contiguous_split_keeps_the_rows_in_the_order_of_the_file(tmp_path):
    split(numbered(tmp_path / "table.csv", 11), 3, tmp_path / "out", seed=None)
    parts = parts_of(tmp_path / "out")
    assert [row[0] for part in parts for row in part] == [str(r) for r in range(11)]
    assert [len(part) for part in parts] == [4, 4, 3]


def test_a_shuffled_split_is_the_same_for_the_same_seed_and_another_for_another(tmp_path):
    table = numbered(tmp_path / "table.csv", 60)
    for name, seed in (("one", 4), ("again", 4), ("other", 5), ("unshuffled", None)):
        split(table, 3, tmp_path / name, seed=seed)
    one, again, other, unshuffled = (parts_of(tmp_path / n) for n in ("one", "again", "other", "unshuffled"))
    assert one == again
    assert one != other
    for shuffled in (one, other):
        common = [set(map(tuple, part)) & set(map(tuple, block)) for part in shuffled for block in unshuffled]
        assert all(common), "every site has rows of every part of the file"


def test_cells_and_names_are_handed_on_as_text(tmp_path):
    header = ["IL-6, serum", 'the "new" one', "NF-κB/p65", " spaced "]
    rows = [
        ["1", "2.50", "3e5", "0.1000000000000000055511151231257827"],
        ["NA", 'he said "no"', "ligne\nbrisée, 𝛽", " 007"],
        ["-0", "+1", "1_000", "١٢"],
    ]
    with pytest.warns(DataWarning, match="row"):
        split(write(tmp_path / "table.csv", [header, *rows]), 2, tmp_path / "out", seed=None)
    assert read(tmp_path / "out" / "site-1.csv") == [header, rows[0], rows[1]]
    assert read(tmp_path / "out" / "site-2.csv") == [header, rows[2]]


@settings(max_examples=50)
@given(table=st.integers(2, 4).flatmap(lambda d: st.lists(st.lists(cells, min_size=d, max_size=d), min_size=2)))
def test_any_cell_survives_a_split(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    rows = table
    header = [f"column {k}" for k in range(len(rows[0]))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        split(write(folder / "table.csv", [header, *rows]), 1, folder / "out", seed=None)
    assert read(folder / "out" / "site-1.csv") == [header, *rows]


@pytest.mark.parametrize("first", ["", "sep={}\n"])
@pytest.mark.parametrize("mark", [";", "\t"])
def test_an_export_with_decimal_commas_is_split_into_tables_that_a_site_reads_right(mark, first, tmp_path):
    names, rows = ["IL-6, serum", "a;b", "c"], [["1,25", "-3", "0,5"], ["2,125", "4", "-0"], ["1e3", "-,5", "7,"]]
    lines = [f'"{names[0]}"{mark}"{names[1]}"{mark}{names[2]}', *(mark.join(row) for row in rows)]
    (tmp_path / "table.csv").write_text(first.format(mark) + "\n".join(lines), encoding="utf-8")
    split(tmp_path / "table.csv", 1, tmp_path / "out", seed=None)
    table = read_tables(site_files(tmp_path / "out"), [], warn=False, min_rows=1)["site-1"]
    assert table.variables == tuple(names)
    assert table.X.tolist() == [[1.25, -3.0, 0.5], [2.125, 4.0, 0.0], [1000.0, -0.5, 7.0]]


def test_a_single_column_whose_name_holds_a_semicolon_stays_one(tmp_path):
    split(write(tmp_path / "table.csv", [["a;b"], ["1"], [""]]), 1, tmp_path / "out", seed=None)
    assert read_header(tmp_path / "out" / "site-1.csv") == ["a;b"]
    assert read(tmp_path / "out" / "site-1.csv") == [["a;b"], ["1"], [""]]


def test_a_split_names_the_cells_that_a_run_will_refuse(tmp_path):
    (tmp_path / "table.csv").write_text("a,b,c\n1,high,1\n\n2,,1\n3,2,1_0\n4,5,6\n", encoding="utf-8")
    with pytest.warns(DataWarning) as said:
        sizes = split(tmp_path / "table.csv", 2, tmp_path / "out", seed=None)
    assert sizes == {"site-1": 2, "site-2": 2}
    text = str(said[0].message)
    assert "2 of 3 columns hold cells that are no numbers: words or codes in 2 ('b' 1 rows, 'c' 1 rows)" in text
    assert "`fedbnsl data dictionary" in text


def test_a_split_that_mixes_the_groups_of_a_table_says_so_and_calls_no_ward_a_site(tmp_path):
    rows = [[{7: "", 8: "NA"}.get(k, f"ward {k % 3}"), str(k), str(k * k % 7)] for k in range(60)]
    table = write(tmp_path / "table.csv", [["Centre", "a", "b"], *rows])
    with pytest.warns(DataWarning) as said:
        split(table, 2, tmp_path / "out", seed=1)
    assert "column 'Centre' looks like the group that a row is from (3 groups)" in str(said[-1].message)
    assert "the site" not in str(said[-1].message)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        split(table, 2, tmp_path / "blocks", seed=None)
    assert not any("looks like the group" in str(one.message) for one in said)


def complete(folder):
    """The tables of a folder for a run that leaves rows with gaps out."""
    plan = Plan.load("standard", ["preparation.missing='complete-cases'"])
    return tables_for(plan, site_files(folder), warn=False)


def test_rows_that_gaps_cost_are_told_with_the_columns_to_leave_out(tmp_path):
    rows = [[str(k), "" if k % 4 else str(k % 9), "" if k == 1 else str(k % 7), str(k % 11)] for k in range(40)]
    write(tmp_path / "site-1.csv", [["a", "often", "once", "b"], *rows])
    with pytest.raises(DataError, match=r"site-1.csv: .*; without 'often' \(missing in 30\), 39 rows are complete"):
        complete(tmp_path)
    with pytest.warns(DataWarning) as told:
        assert tables_for(Plan.load("standard"), site_files(tmp_path))["site-1"].n_samples == 40
    assert any("count for those that they have: 'often' 30, 'once' 1" in str(one.message) for one in told)
    write(tmp_path / "site-1.csv", [["a", "b"], *([str(k), str(k * k % 7)] for k in range(12))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        assert read_tables(site_files(tmp_path), (), min_rows=10)["site-1"].n_samples == 12


def test_columns_to_leave_out_are_told_until_half_of_the_rows_are_complete(tmp_path):
    """Without `often`, 30 of 80 rows are complete: more than 20, but fewer than half."""
    rows = [[str(k), "" if k < 65 else str(k % 9), "" if k >= 30 else str(k % 7), str(k % 11)] for k in range(80)]
    write(tmp_path / "site-1.csv", [["a", "often", "late", "b"], *rows])
    with pytest.raises(DataError, match=r"without 'often' \(missing in 65\), 'late' \(missing in 50\), 80 rows are"):
        complete(tmp_path)


def test_gaps_all_over_a_wide_table_are_told_in_one_line_and_not_by_a_list_of_its_columns(tmp_path):
    rows = [["" if (j - k) % 40 == 0 else str((j + 1) * (k + 1) % 97) for j in range(40)] for k in range(40)]
    write(tmp_path / "site-1.csv", [[f"v{j}" for j in range(40)], *rows])
    with pytest.raises(DataError, match="20 of the 40 variables would have to be left out for 20 rows") as refused:
        complete(tmp_path)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(("asked", "meant"), [("IQ", "'iq'"), ("heigth", "'height'")])
def test_a_column_that_is_not_there_is_answered_by_the_one_that_was_meant(asked, meant, tmp_path):
    write(tmp_path / "site-1.csv", [["iq", "height", "b"], *([str(k), str(k % 9), str(k % 7)] for k in range(30))])
    with pytest.raises(DataError, match=rf"did you mean {meant}\?"):
        read_tables(site_files(tmp_path), (asked, "b"))


def sites(folder, **broken):
    """Three tables of 30 rows; in some of them, a cell in a line is something else."""
    write_federation(synthesise(3, 2, 3, 30, 0), folder)
    for site, (line, cell) in broken.items():
        path = folder / f"{site.replace('_', '-')}.csv"
        rows = path.read_text(encoding="utf-8").splitlines()
        rows[line - 1] = cell + "," + rows[line - 1].partition(",")[2]
        path.write_text("\n".join(rows), encoding="utf-8")
    return site_files(folder)


def test_all_tables_that_cannot_be_used_are_named_at_once(tmp_path):
    with pytest.raises(DataError) as caught:
        read_tables(sites(tmp_path / "sites", site_1=(3, "high"), site_3=(9, "-")), ())
    text = str(caught.value)
    assert text.startswith("2 of 3 tables cannot be used:")
    assert "site-1.csv: column 'X1': 1 row(s) are not numbers (line 3)" in text
    assert "site-3.csv: column 'X1': 1 row(s) are not numbers (line 9)" in text
    assert "site-2" not in text
    assert "--dictionary FILE (`simulate`, `demo` and `tune` find dictionary.toml in the folder" in caught.value.remedy
    assert "`fedbnsl data dictionary` drafts one, from a PUBLIC sample only" in caught.value.remedy


def test_what_is_odd_about_a_table_is_said_with_the_name_of_its_site(tmp_path):
    files = sites(tmp_path / "sites")
    table = read(files["site-2"])
    write(files["site-2"], [table[0], *([str(float(row[0]) + 50), *row[1:]] for row in table[1:])])
    with pytest.warns(DataWarning, match=r"^site-2: column\(s\) 'X1': means further from zero"):
        read_tables(files, ())


def test_a_byte_order_mark_and_blank_lines_do_not_reach_the_sites(tmp_path):
    (tmp_path / "table.csv").write_bytes("\ufeffa,b\n1,2\n\n3,4\n\n".encode())
    assert split(tmp_path / "table.csv", 2, tmp_path / "out", seed=None) == {"site-1": 1, "site-2": 1}
    assert (tmp_path / "out" / "site-1.csv").read_bytes() == b"a,b\n1,2\n"
    assert (tmp_path / "out" / "site-2.csv").read_bytes() == b"a,b\n3,4\n"


def test_fewer_rows_than_sites_are_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(DataError, match=r"table\.csv: 2 rows cannot be split over 3 sites"):
        split(numbered(tmp_path / "table.csv", 2), 3, tmp_path / "out", seed=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "the file is empty"),
        ("a;b\n1,234;2\n", "every number with a comma has three digits after it"),
        ("sep=;\na;b\n1;2\n3\n", r"1 row\(s\) without exactly 2 fields, the first in line 4"),
    ],
)
def test_a_file_that_no_site_could_read_is_refused_as_there(content, why, tmp_path):
    (tmp_path / "table.csv").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=rf"table\.csv: {why}"):
        split(tmp_path / "table.csv", 1, tmp_path / "out", seed=0)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_tables_is_left_as_it_is(tmp_path):
    table = numbered(tmp_path / "table.csv", 6)
    split(table, 2, tmp_path / "out", seed=0)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(ResultError, match="holds site tables already"):
        split(table, 3, tmp_path / "out", seed=1)
    with pytest.raises(ResultError, match="holds site tables already"):
        write_federation(synthesise(3, 2, 4, 5, 0), tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ResultError, match=r"file/out cannot be made: Not a directory"):
        split(numbered(tmp_path / "table.csv", 6), 2, tmp_path / "file" / "out", seed=0)


def test_an_empty_folder_is_as_good_as_a_new_one(tmp_path):
    (tmp_path / "out").mkdir()
    assert split(numbered(tmp_path / "table.csv", 6), 2, tmp_path / "out", seed=0) == {"site-1": 3, "site-2": 3}


def test_sites_come_in_the_order_of_their_numbers_and_nothing_else_is_a_site(tmp_path):
    numbers = np.random.default_rng(1).permutation(np.arange(1, 13))
    for name in [*(f"site-{k}" for k in numbers), "site-b", "site-a", "truth", "mysite-1"]:
        (tmp_path / f"{name}.csv").touch()
    (tmp_path / "site-3.txt").touch()
    files = site_files(tmp_path)
    assert [*files][:12] == [f"site-{k}" for k in range(1, 13)]
    assert [*files][12:] == ["site-a", "site-b"]
    assert files["site-10"] == tmp_path / "site-10.csv"


def test_a_folder_without_tables_is_refused_with_the_commands_that_make_some(tmp_path):
    (tmp_path / "truth.csv").touch()
    with pytest.raises(DataError, match=r"holds no site-\*\.csv \(it holds truth\.csv\)") as caught:
        site_files(tmp_path)
    assert "`fedbnsl data split` and `fedbnsl data synth` make such folders" in caught.value.remedy
    with pytest.raises(DataError, match=r"holds no site-\*\.csv \(there is no such folder\)"):
        site_files(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no site-\*\.csv \(it is a file, not a folder\)"):
        site_files(tmp_path / "truth.csv")
