"""Generated tables of hospitals: one trouble at a time, drawn from the law that the module states."""

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedbnsl.cli import fedbnsl
from fedbnsl.errors import ResultError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl_client.data.reading import ColumnMap
from fedbnsl_workbench.tables.hospital import ALL, UNITS, Trouble, draw, write_hospitals

FEW = (40, 60, 80)


def numbers(site, names):
    """Columns as numbers; NaN where a cell is none."""
    place = [site.header.index(name) for name in names]
    return np.array([[float(row[k]) if row[k] not in ("NA", "") else np.nan for k in place] for row in site.rows])


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_hospitals(draw(5, rows=FEW), tmp_path / name)
    one, other = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("one", "other"))
    assert one == other
    assert sorted(one) == [
        "dictionary.toml",
        "site-1.csv",
        "site-2.columns.toml",
        "site-2.csv",
        "site-3.columns.toml",
        "site-3.csv",
        "truth.csv",
    ]
    with pytest.raises(ResultError, match="holds site tables already"):
        write_hospitals(draw(5, rows=FEW), tmp_path / "one")


def test_without_troubles_a_table_follows_the_linear_gaussian_network() -> None:
    """The covariance of X = X W + N(0, 1) is that of (I - W)^-1; what a regression leaves has variance 1."""
    hospitals = draw(3, (), rows=(20_000,))
    X = numbers(hospitals.sites[0], hospitals.variables)
    at = 5 / np.sqrt(20_000)
    for j in range(X.shape[1]):
        parents = np.flatnonzero(hospitals.W[:, j])
        left = X[:, j] - X[:, parents] @ hospitals.W[parents, j]
        assert left.mean() == pytest.approx(0.0, abs=at)
        assert left.std() == pytest.approx(1.0, abs=at)
        if parents.size:
            found = np.linalg.lstsq(X[:, parents], X[:, j], rcond=None)[0]
            np.testing.assert_allclose(found, hospitals.W[parents, j], atol=10 * at)


@pytest.mark.long
def test_a_child_is_linear_in_what_was_observed_of_its_parents_whatever_their_kinds() -> None:
    """Least squares on the columns of the dictionary leaves the unit noise of a continuous child, and nothing else."""
    seen = set()
    for seed in range(6):
        hospitals = draw(seed, ("binary", "ordinal", "nominal", "count"), rows=(8000,))
        dictionary = Dictionary.model_validate(hospitals.dictionary)
        site = hospitals.sites[0]
        columns = {}
        for name, entry in dictionary.items():
            cells = [row[site.header.index(name)] for row in site.rows]
            codes = np.array([entry.levels.index(cell) if entry.levels else float(cell) for cell in cells], dtype=float)
            columns[name] = entry.values(codes)
        for j, name in enumerate(hospitals.variables):
            parents = [hospitals.variables[i] for i in np.flatnonzero(hospitals.W[:, j])]
            kinds = {dictionary[parent].kind for parent in parents} - {"continuous"}
            if dictionary[name].kind == "continuous" and kinds:
                design = np.column_stack([np.ones(8000), *(columns[parent] for parent in parents)])
                _, residual, _, _ = np.linalg.lstsq(design, columns[name][:, 0], rcond=None)
                assert residual[0] / 8000 == pytest.approx(1.0, abs=5 * np.sqrt(2 / 8000))
                seen |= kinds
    assert seen == {"binary", "ordinal", "nominal", "count"}


def test_means_units_and_shifts_move_the_clean_cells_and_nothing_else() -> None:
    clean = [numbers(site, UNITS) for site in draw(4, (), rows=FEW).sites]
    for trouble in ("means", "units", "shifts"):
        moved = [numbers(site, UNITS) for site in draw(4, (trouble,), rows=FEW).sites]
        slopes, offsets = [], []
        for X, Y in zip(clean, moved, strict=True):
            fits = [np.polyfit(x, y, 1) for x, y in zip(X.T, Y.T, strict=True)]
            np.testing.assert_allclose(Y, X * [a for a, _ in fits] + [b for _, b in fits], rtol=1e-4, atol=1e-3)
            slopes.append([a for a, _ in fits])
            offsets.append([b for _, b in fits])
        apart = np.abs(np.subtract(offsets[0], offsets[1])).max()
        assert (apart > 0.5) == (trouble == "shifts"), "only shifts differ between sites"
        assert np.allclose(slopes, 1.0, atol=1e-3) == (trouble != "units")
        assert (min(offsets[0]) > 2.0) == (trouble == "means")
    units = np.array(
        [
            a
            for a, _ in (
                np.polyfit(*pair, 1)
                for pair in zip(clean[0].T, numbers(draw(4, ("units",), rows=FEW).sites[0], UNITS).T, strict=True)
            )
        ]
    )
    assert 0.1 <= units.min() < 0.5
    assert 2.0 < units.max() <= 10.0


def test_ranges_are_wider_than_the_data_and_do_not_follow_them() -> None:
    hospitals, longer = draw(6, ("means", "units", "shifts")), draw(6, ("means", "units", "shifts"), rows=(10, 10))
    assert hospitals.dictionary == longer.dictionary, "rows drawn do not matter"
    for site in hospitals.sites:
        X = numbers(site, hospitals.variables)
        ranges = [hospitals.dictionary[name]["range"] for name in hospitals.variables]
        for x, (low, high) in zip(X.T, ranges, strict=True):
            assert low < x.min()
            assert x.max() < high
            assert high - low > 12 * x.std()


@pytest.mark.long
def test_a_tenth_of_the_rows_lose_a_cell_or_a_tenth_of_the_cells_are_lost() -> None:
    for trouble, share_of_rows in (("missing", 0.1), ("missing-cells", 1 - 0.9**12)):
        rows = [row for site in draw(7, (trouble,)).sites for row in site.rows]
        gaps = np.array([row.count("NA") for row in rows])
        error = 5 * np.sqrt(share_of_rows * (1 - share_of_rows) / len(rows))
        assert (gaps > 0).mean() == pytest.approx(share_of_rows, abs=error)
        assert gaps.max() == 1 or trouble == "missing-cells"


@pytest.mark.parametrize("trouble", ["row-of-999s", "unsaid-999s"])
def test_one_row_of_one_site_is_all_999s(trouble: Trouble) -> None:
    hospitals = draw(8, (trouble,), rows=FEW)
    rows = [row for site in hospitals.sites for row in site.rows]
    assert sum(set(row) == {"999"} for row in rows) == 1
    assert sum("999" in row for row in rows) == 1
    said = [entry["missing"] for site in hospitals.sites for entry in site.columns.values()]
    assert said == ([["999"]] * len(UNITS) if trouble == "row-of-999s" else [])


def test_a_site_s_own_columns_toml_leads_back_to_the_dictionary(tmp_path: Path) -> None:
    """Read by hand with the written files alone, the spelled table is the plain one."""
    kinds = ("means", "binary", "ordinal", "nominal", "count")
    write_hospitals(draw(9, kinds, rows=FEW), tmp_path / "plain")
    write_hospitals(draw(9, (*kinds, "spellings"), rows=FEW), tmp_path / "own")
    dictionary = Dictionary.load(tmp_path / "own" / "dictionary.toml")
    assert dictionary == Dictionary.load(tmp_path / "plain" / "dictionary.toml")
    for k in (2, 3):
        path = tmp_path / "own" / f"site-{k}.columns.toml"
        ColumnMap.load(path).check(dictionary)
        said = tomllib.loads(path.read_text(encoding="utf-8"))
        (header, *rows), (plain_header, *plain) = (
            list(csv.reader((tmp_path / name / f"site-{k}.csv").read_text(encoding="utf-8").splitlines()))
            for name in ("own", "plain")
        )
        assert header != plain_header
        for name in dictionary.variables:
            here = said.get(name, {})
            levels = {spelling: level for level, spelling in here.get("levels", {}).items()}
            column, place = header.index(here.get("column", name)), plain_header.index(name)
            for row, expected in zip(rows, plain, strict=True):
                if dictionary[name].levels:
                    assert levels.get(row[column], row[column]) == expected[place]
                else:
                    value = float(row[column]) * here.get("factor", 1.0)
                    assert value == pytest.approx(float(expected[place]), rel=2e-5)


@pytest.mark.long
def test_the_command_writes_what_it_is_asked_for(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        return CliRunner().invoke(fedbnsl, ["data", "hospital", *arguments], standalone_mode=False).stdout

    assert "3 tables of 200, 3000, 12000 rows x 12 variables" in run("--out", str(tmp_path / "all"))
    run("--with", "nothing", "--seed", "3", "--out", str(tmp_path / "clean"))
    header, first = (tmp_path / "clean" / "site-1.csv").read_text(encoding="utf-8").splitlines()[:2]
    assert header == ",".join(UNITS)
    assert first.split(",") == draw(3, ()).sites[0].rows[0]
    assert not (tmp_path / "clean" / "site-2.columns.toml").exists()
    assert not {"missing-cells", "unsaid-999s"} & set(ALL)


def test_an_unknown_trouble_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(fedbnsl, ["data", "hospital", "--with", "men", "--out", str(tmp_path / "x")])
    assert found.exit_code != 0
    assert "choose from means, units" in str(found.exception) + found.output
