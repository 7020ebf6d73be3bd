"""Two worker processes read a table, and the run is that of a site that reads it by itself."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import Outcome
from dask_workers import FILES, HERE, ROWS, WARD, distributed, parquet, pyarrow, ward_table, workers, written
from fedbnsl.errors import DataError, SetupError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data import dask_table
from fedbnsl_client.data.dask_table import Cluster, connected, read, scheduler_address
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.mapped_array import row_blocks, sum_over_rows
from fedbnsl_client.data.plan_fit import fit_of
from fedbnsl_client.data.reading import ColumnMap
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.private_moments import (
    Whole,
    release_covariance,
    release_residual_moments,
    release_second_moments,
    release_statistics,
)
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_workbench.simulate import simulate
from free_port import free_port
from private_site import private_plan

D = 4
NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with workers(2) as found:
        yield found.address


@pytest.fixture(scope="module")
def cluster(address: str) -> Iterator[Cluster]:
    with connected(address) as found:
        yield found


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_table, "_PART_ROWS", 60)  # row groups of 40 rows: two make a part


@pytest.fixture
def X() -> Matrix:
    drawn = np.random.default_rng(11)
    return drawn.standard_normal((FILES * ROWS, D)) @ (np.eye(D) + np.triu(drawn.uniform(size=(D, D)), 1))


@pytest.fixture
def folder(tmp_path: Path, X: Matrix) -> Path:
    return written(tmp_path / "table", dict(zip(NAMES, X.T, strict=True)))


@pytest.fixture
def ward(tmp_path: Path) -> Path:
    return ward_table(tmp_path / "ward")


# ---- sums --------------------------------------------------------------------------------------------------------


def test_exact_moments_are_the_parts_added_in_order_bit_for_bit(cluster: Cluster, folder: Path, X: Matrix) -> None:
    # Of each file row groups of 40, 40, 40 and 10 rows; a part ends with the row group that makes it 60 rows.
    blocks = [[part] for part in np.split(X, [80, 170, 250, 340])]
    # A part that spans two files comes in a block for each.
    blocks[1], blocks[3] = [X[80:130], X[130:170]], [X[250:260], X[260:340]]
    expected = reduce(np.add, [reduce(np.add, [block.T @ block for block in part]) for part in blocks]) / len(X)
    data = read(cluster, folder)
    assert data.X.shape == X.shape
    found = SecondMoments.of(data.X).S
    assert found.tobytes() == SecondMoments.of(data.X).S.tobytes()
    np.testing.assert_allclose(found, X.T @ X / len(X), rtol=1e-13)
    assert found.tobytes() == expected.tobytes()


def test_private_sums_are_the_same_bits_as_those_of_a_table_in_memory(
    cluster: Cluster, folder: Path, X: Matrix
) -> None:
    bounds, W = np.full(D, 4.0), np.triu(np.random.default_rng(2).normal(size=(D, D)), 1)

    def released(X: Matrix) -> list[Matrix]:
        draw = randomness.seeded("moments")
        return [
            release_second_moments(X, bounds, 1000, draw),
            release_statistics(X, -bounds, bounds, np.arange(D), 1000, draw),
            release_covariance(X, 3.0, 1000, draw),
            release_residual_moments(X, W, bounds, 3.0, 1000, draw),
            release_residual_moments(X, W, bounds, 3.0, 1000, draw, Whole(bounds, bounds, bounds)),
        ]

    for here, there in zip(released(X), released(read(cluster, folder).X), strict=True):
        assert here.tobytes() == there.tobytes()


def test_a_site_is_told_that_its_rows_were_not_compared(cluster: Cluster, folder: Path) -> None:
    assert read(cluster, folder).remarks()[-1].startswith("Dask workers hold the rows: copies of records, row num")


def test_columns_and_complete_rows_are_chosen_by_the_workers(cluster: Cluster, ward: Path) -> None:
    options = {"dictionary": WARD, "mapping": HERE}
    here, there = Dataset.read(ward, warn=False, **options), read(cluster, ward, **options)  # type: ignore[arg-type]

    def rows_of(data: Dataset) -> Matrix:
        """All rows, one after the other, as a sum of one-row contributions cannot show."""
        return sum_over_rows(data.X, lambda rows: np.sort(np.abs(rows), axis=0).sum(axis=0))

    chosen = ("sex", "crp", "blood=A")
    for one, other in (
        (here, there),
        (here.complete_cases(), there.complete_cases()),
        (here.reordered(chosen).complete_cases(), there.reordered(chosen).complete_cases()),
        (here.complete_cases().reordered(chosen), there.complete_cases().reordered(chosen)),
        (here.with_zeros(), there.with_zeros()),
        (here.reordered(chosen).with_zeros(), there.reordered(chosen).with_zeros()),
    ):
        assert other.variables == one.variables
        assert other.X.shape == one.X.shape
        assert other.gaps == one.gaps
        np.testing.assert_allclose(rows_of(other), rows_of(one), rtol=1e-12)
    assert there.odd[:-1] == here.odd
    assert there.dictionary == here.dictionary
    assert 0 < here.gaps.rows < here.n_samples


def test_workers_read_an_absent_column_as_empty(cluster: Cluster, ward: Path) -> None:
    wider = Dictionary.model_validate({**WARD.model_dump(), "bmi": {"range": [10, 80]}})
    lacking = ColumnMap.model_validate({**HERE.root, "bmi": {"absent": True}})
    there = read(cluster, ward, dictionary=wider, mapping=lacking)
    here = Dataset.read(ward, dictionary=wider, mapping=lacking, warn=False)
    assert there.absent == here.absent == ("bmi",)
    assert there.gaps == here.gaps
    for data in (here, there):
        values = sum_over_rows(data.X, lambda rows: (~np.isnan(rows)).sum(axis=0))
        assert values[data.variables.index("bmi")] == 0 < values[0]


def test_what_a_table_is_like_under_a_plan_is_counted_by_the_workers(cluster: Cluster, folder: Path) -> None:
    plan = private_plan(privacy={"feature_bounds": [1.0]})
    here, there = fit_of(Dataset.read(folder), plan), fit_of(read(cluster, folder), plan)
    assert here == there
    assert here.beyond_any > 0.1


# ---- runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["standard", "private-moments", "private"])
def test_a_run_over_tables_that_workers_read_learns_what_one_over_tables_in_memory_does(
    cluster: Cluster, ward: Path, folder: Path, tmp_path: Path, name: str
) -> None:
    options: dict[str, Any] = {"dictionary": WARD, "mapping": HERE}
    path = folder if name == "private-moments" else ward
    if name == "private-moments":
        options = {}
    # Two sites are too few for sums. At epsilon 1 the noise hides the spread of age in so few rows: no edge is told.
    alone = ["privacy.secure_aggregation=false", "privacy.epsilon=5"] if name == "private" else []
    plan = Plan.load(name, alone).with_settings(n_participants=2)
    if options:
        plan = plan.with_settings(dictionary=WARD)

    def result(table: Callable[[], Dataset], out: Path) -> dict[str, Any]:
        def admitted() -> Dataset:
            data = table()
            return PublicTable("a", data).admit(plan, 1, data.variables)[0]

        return simulate(plan, {"a": admitted(), "b": admitted()}, out, noise_seed=1)

    here = result(lambda: Dataset.read(path, warn=False, **options), tmp_path / "here")
    there = result(lambda: read(cluster, path, **options), tmp_path / "there")
    assert [(edge["source"], edge["target"]) for edge in there["edges"]] == [
        (edge["source"], edge["target"]) for edge in here["edges"]
    ]
    assert here["edges"]
    # In private runs sums are integers before the noise: the same bits.
    weights = [[edge["weight"] for edge in run["edges"]] for run in (there, here)]
    assert weights[0] == (pytest.approx(weights[1], rel=1e-6) if name == "standard" else weights[1])


def test_a_plan_that_looks_at_rows_in_every_step_is_refused_before_anything_is_sent(
    cluster: Cluster, folder: Path
) -> None:
    data = read(cluster, folder)
    site = PublicTable("a", data)
    with pytest.raises(DataError, match="dp-pgcd looks at all rows") as caught:
        site.admit(private_plan(), 1, data.variables)
    assert "--engine" in caught.value.remedy
    with pytest.raises(DataError, match="this needs the rows"):
        next(row_blocks(data.X))


# ---- what can go wrong -------------------------------------------------------------------------------------------


def test_cells_that_cannot_be_read_are_reported_over_all_parts(cluster: Cluster, tmp_path: Path, X: Matrix) -> None:
    cells = [str(value) for value in X[:, 0]]
    cells[2] = cells[200] = cells[389] = "n/k"
    path = written(tmp_path / "bad", {"a": cells, "b": X[:, 1]})
    with pytest.raises(DataError) as caught:
        read(cluster, path)
    assert str(caught.value) == f"{path}: column 'a': 3 row(s) are not numbers (data rows 3, 201, 390)"


def test_a_file_that_changes_between_two_sums_ends_the_run(cluster: Cluster, folder: Path, X: Matrix) -> None:
    data = read(cluster, folder)
    parquet.write_table(pyarrow.table(dict(zip(NAMES, X[:ROWS].T, strict=True))), folder / "1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet: the file changed since it was first read"):
        SecondMoments.of(data.X)


def test_a_file_that_a_worker_lacks_is_named(cluster: Cluster, folder: Path) -> None:
    data = read(cluster, folder)
    (folder / "2.parquet").unlink()
    with pytest.raises(DataError, match=r"2\.parquet: a Dask worker cannot read it: No such file"):
        SecondMoments.of(data.X)


def test_a_failure_in_a_worker_tells_its_kind_and_not_its_words(cluster: Cluster, folder: Path) -> None:
    def failing(rows: Matrix) -> Matrix:
        raise KeyError(f"a cell: {rows[0, 0]}")

    with pytest.raises(DataError, match=r"a Dask worker failed \(KeyError\)") as caught:
        sum_over_rows(read(cluster, folder).X, failing)
    assert "a cell" not in str(caught.value)


def test_other_files_than_parquet_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    for name in ("a.csv", "absent"):
        with pytest.raises(DataError, match="Dask workers read Parquet"):
            read(cluster, tmp_path / name)


def test_a_worker_that_dies_is_replaced_by_the_other(folder: Path, tmp_path: Path) -> None:
    once = tmp_path / "once"

    def deadly(rows: Matrix) -> Matrix:
        if not once.exists():
            once.touch()
            os._exit(1)
        return np.asarray(rows.sum(axis=0))

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as restarted,
        connected(restarted.scheduler_address.replace("tcp://", "dask://")) as cluster,
    ):
        data = read(cluster, folder)
        np.testing.assert_allclose(
            sum_over_rows(data.X, deadly), Dataset.read(folder).X.sum(axis=0), rtol=1e-12, atol=1e-12
        )
    assert once.exists()


def test_a_scheduler_that_is_not_there_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_table, "_CONNECT_S", 1.0)
    with (
        pytest.raises(DataError, match="nobody answers") as caught,
        connected(f"dask://127.0.0.1:{free_port()}"),
    ):
        pass
    assert "leave --engine out" in caught.value.remedy, "the table is not wrong"


@pytest.mark.parametrize(
    "engine",
    ["127.0.0.1:8786", "dask://127.0.0.1", "tcp://127.0.0.1:1", "dask://user:secret@127.0.0.1:1", "dask://:1", ""],
)
def test_an_address_of_another_form_is_refused(engine: str) -> None:
    with pytest.raises(SetupError, match="write dask://host:port") as caught:
        scheduler_address(engine)
    assert "secret" not in str(caught.value)


def test_sums_leave_this_machine_over_tls_alone() -> None:
    assert scheduler_address("dask://localhost:8786") == "tcp://localhost:8786"
    assert scheduler_address("dask://[::1]:8786") == "tcp://[::1]:8786"
    assert scheduler_address("dask+tls://cluster.example:8786") == "tls://cluster.example:8786"
    for engine in ("dask://cluster.example:8786", "dask://10.0.0.4:8786"):
        with pytest.raises(SetupError, match="plain text"):
            scheduler_address(engine)


def test_the_command_joins_with_workers(fedbnsl: Callable[..., Outcome], address: str, folder: Path) -> None:
    """Up to the call of a coordinator that is not there."""
    join = ("participant", "join", f"127.0.0.1:{free_port()}", "--insecure", "--patience=0", "--engine", address)
    outcome = fedbnsl(*join, "--site=a", "--public-data", "--data", folder)
    assert outcome.code == 6, outcome.err


@pytest.mark.parametrize("module", ["distributed", "pyarrow"])
def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=r"pip install 'fedbnsl-site\[dask\]'"), connected("dask://127.0.0.1:1"):
        pass
