"""A table that lies in a file gives what it gives in memory, is nobody else's to read, and takes little memory."""

import hmac
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedbnsl.errors import DataError
from fedbnsl.protocol.messages import RoundTask
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.fingerprint import fingerprint, fingerprint_before
from fedbnsl_client.data.mapped_array import gathered, lies_in_file, row_blocks, zeros_in_file
from fedbnsl_client.data.record_tags import record_tags
from fedbnsl_client.losses.blocked import BlockedGradient
from fedbnsl_client.losses.clipped import ClippedGradient
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.private_moments import release_covariance, release_second_moments
from fedbnsl_client.solvers.local_solver import _second_moments
from private_site import private_plan

N, D = 1003, 5
NAMES = tuple("edcba")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 1)  # 64 rows
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 8 * D * 100)


@pytest.fixture
def table() -> Matrix:
    rng = np.random.default_rng(8)
    return rng.standard_normal((N, D)) @ (np.eye(D) + np.triu(rng.uniform(size=(D, D)), 1))


@pytest.fixture
def mapped(table: Matrix) -> Matrix:
    return in_file(table)


def in_file(X: Matrix) -> Matrix:
    found = gathered(np.array_split(X, 7), X.shape[1])
    assert lies_in_file(found)
    return found


# ---- where it lies -------------------------------------------------------------------------------------------------


def test_a_small_table_stays_in_memory_and_a_larger_one_does_not(table: Matrix) -> None:
    limit = mapped_array.MAPPED_BYTES // (8 * D)
    assert not lies_in_file(gathered([table[:50], table[50:limit]], D))
    assert lies_in_file(gathered([table[:50], table[50 : limit + 1]], D))


def test_a_mapped_table_has_the_same_values_and_cannot_be_changed(table: Matrix, mapped: Matrix) -> None:
    assert mapped.tobytes() == table.tobytes()
    assert mapped.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        mapped[0, 0] = 1.0


@pytest.mark.parametrize("make", [lambda: in_file(np.ones((N, D))), lambda: zeros_in_file((N, D))])
def test_its_file_is_for_the_owner_alone_and_has_no_name(
    make: Callable[[], Matrix], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[os.stat_result] = []
    temporary = tempfile.TemporaryFile

    def noted(**options: str) -> object:
        file = temporary(**options)
        made.append(os.fstat(file.fileno()))
        assert not list(tmp_path.iterdir())
        return file

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    X = make()
    assert [(status.st_mode & 0o777, status.st_nlink) for status in made] == [(0o600, 0)]
    assert f" {made[0].st_ino} " in Path("/proc/self/maps").read_text("utf-8")
    assert not list(tmp_path.iterdir())
    del X
    assert f" {made[0].st_ino} " not in Path("/proc/self/maps").read_text("utf-8")


def test_a_table_goes_where_tmpdir_says_and_a_folder_that_is_not_there_is_named(
    table: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(DataError, match=r"absent: no temporary file .*: No such file .* \(TMPDIR names another"):
        gathered([table], D)


@pytest.mark.parametrize("make", ["gathered([np.ones((10**5, 5))], 5)", "zeros_in_file((10**5, 5))"])
def test_a_full_disk_is_said_in_words(make: str) -> None:
    """A limit of the process's file size stands for the disk's."""
    code = f"""
        import resource, signal
        import numpy as np
        from fedbnsl_client.data import mapped_array
        from fedbnsl_client.data.mapped_array import gathered, zeros_in_file
        mapped_array.MAPPED_BYTES = 0
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
        {make}
    """
    outcome = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "DataError" in outcome.stderr
    assert "no temporary file for a large table: File too large" in outcome.stderr


@pytest.mark.parametrize("n", [1, 63, 64, 65, 127, 128, 129, N])
def test_blocks_make_up_the_table_and_none_is_small(table: Matrix, n: int) -> None:
    blocks = list(row_blocks(in_file(np.tile(table, (1, 200))[:n])))
    assert np.array_equal(np.concatenate(blocks)[:, :D], table[:n])
    assert min(map(len, blocks)) >= min(n, 64)
    assert max(map(len, blocks)) < 128
    assert all(len(block) % 64 == 0 for block in blocks[:-1])


# ---- what a site is told of it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_times", [1, 3])
def test_copies_and_row_numbers_are_told_of_a_table_in_a_file_as_in_memory(
    table: Matrix, n_times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies lie in other blocks than their originals, and one record in ten lacks a value."""
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 8 * D * 512)
    X = np.tile(table, (n_times, 1))
    X[::10, 0] = np.nan
    numbered = np.column_stack([X, np.arange(len(X)), np.arange(len(X)) % 900])
    names = (*NAMES, "row", "repeats after 900")
    for values, variables in ((X, NAMES), (numbered, names)):
        there = Dataset.of_values(variables, values, origin="x", warn=False)
        with monkeypatch.context() as roomy:
            roomy.setattr(mapped_array, "MAPPED_BYTES", 2**30)
            here = Dataset.of_values(variables, values, origin="x", warn=False)
        assert lies_in_file(there.X)
        assert not lies_in_file(here.X)
        assert there.remarks() == here.remarks()
        told = " ".join(there.remarks())
        assert ("occur more than once" in told) == (n_times > 1 and variables == NAMES)
        assert [f"column {name!r}: whole numbers" in told for name in names] == [
            name == "row" and variables == names for name in names
        ]


def test_a_full_disk_leaves_copies_unlooked_for_and_the_table_in_use(
    table: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system without room for a second file stands for the disk."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    data = Dataset.of_values(NAMES, table, origin="x", warn=False)
    assert data.n_samples == N
    (told,) = (one for one in data.remarks() if "copies" in one)
    assert told.startswith("copies of records, row numbers and codes such as 999 were not looked for: ")
    assert "No space left on device" in told


# ---- what is computed from it --------------------------------------------------------------------------------------


def test_second_moments_are_the_same_to_rounding(table: Matrix, mapped: Matrix) -> None:
    assert len(list(row_blocks(mapped))) > 10
    S = SecondMoments.of(table).S
    assert np.abs(SecondMoments.of(mapped).S - S).max() <= 1e-12 * np.abs(S).max()


def test_second_moments_in_memory_are_those_of_one_product(table: Matrix) -> None:
    assert np.array_equal(SecondMoments.of(table).S, table.T @ table / N)


def test_noisy_moments_are_the_same_bits(table: Matrix, mapped: Matrix) -> None:
    def released(X: Matrix) -> list[Matrix]:
        randbelow = randomness.seeded("moments")
        return [
            release_second_moments(X, np.full(D, 4.0), 1000, randbelow),
            release_covariance(X, 3.0, 1000, randbelow),
        ]

    for one, other in zip(released(table), released(mapped), strict=True):
        assert np.array_equal(one, other)


def test_clipped_sums_are_the_same_integers_at_every_step(table: Matrix, mapped: Matrix) -> None:
    rng = np.random.default_rng(3)
    clips = np.linspace(0.5, 1.5, D)
    one, other = ClippedGradient(table, clips), BlockedGradient(mapped, clips)
    for _ in range(3):
        B = rng.normal(size=(D, D))
        one.move_to(B)
        other.move_to(B)
        for i, j, change in ((0, 1, 0.3), (4, 2, -1.7), (1, 1, 1e-3)):
            one.step(i, j, change)
            other.step(i, j, change)
            assert np.array_equal(one.sums, other.sums)
            assert np.abs(one.sums).min() > 0
    assert np.array_equal(one.unit, other.unit)


@pytest.mark.parametrize("solver", ["dp-pgcd", "dp-pgcd-laplace", "noisy-covariance"])
def test_a_seeded_private_run_sends_the_same_bits(table: Matrix, mapped: Matrix, solver: str) -> None:
    plan = private_plan(local_solver=solver, local_steps=5, privacy={"epsilon": 4.0})
    sent = [
        [
            site.handle(RoundTask(t, admm_rounds.Task(SparseMatrix.from_dense(np.zeros((D, D)))), contributed=t > 1))
            for t in (1, 2)
        ]
        for X in (table, mapped)
        for site in [Participant("site", Dataset(NAMES, X), plan, randbelow=randomness.seeded(solver))]
    ]
    for one, other in zip(*sent, strict=True):
        assert one.content.weights.nnz > 0
        assert np.array_equal(one.content.weights.to_dense(), other.content.weights.to_dense())


def test_exact_smoothness_is_the_same_to_rounding(table: Matrix, mapped: Matrix) -> None:
    plan = private_plan(privacy={"epsilon": 4.0, "smoothness": "exact"})
    assert plan.privacy is not None
    one, other = (_second_moments(plan, plan.privacy, X, None) for X in (table, mapped))
    assert np.array_equal(one, (table * table).mean(axis=0))
    assert np.abs(one - other).max() <= 1e-12 * one.max()


FEW_VALUES = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 300), st.integers(1, 3)),
    elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324, 2.5]),
    fill=st.sampled_from([0.0, 1.0]),
)


@given(FEW_VALUES, st.sampled_from(["as it is", "ascending", "descending", "normal"]), st.integers(3, 200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.long
def test_the_fingerprint_is_that_of_the_table_in_memory(X: Matrix, how: str, at_a_time: int) -> None:
    n, d = X.shape
    if how == "normal":
        X = np.random.default_rng(n).standard_normal((n, d))
    elif how != "as it is":
        X = X[np.lexsort(X.T[::-1])][:: 1 if how == "ascending" else -1]
    names = NAMES[:d]
    for known_by in (fingerprint, fingerprint_before):
        in_memory = known_by(bytes(32), names, X)
        with mock.patch.multiple(mapped_array, MAPPED_BYTES=0, _ROWS_ALIKE=at_a_time):
            assert known_by(bytes(32), names, in_file(X)) == in_memory


def test_an_older_fedbnsl_knew_a_table_by_its_sorted_rows(table: Matrix) -> None:
    """Ledgers hold it: the same table must keep it in every version."""
    table[:, 4] = np.arange(N) % 3  # the first column by name, with ties
    order = [4, 3, 2, 1, 0]
    rows = np.array(sorted(map(tuple, table[:, order].tolist())))
    head = b"".join(size.to_bytes(8, "little") for size in (N, D))
    names = b"".join((1).to_bytes(8, "little") + name.encode() for name in sorted(NAMES))
    assert (
        fingerprint_before(b"key", NAMES, table) == hmac.digest(b"key", head + names + rows.tobytes(), "sha256").hex()
    )


def test_a_fingerprint_is_of_the_tags_of_the_rows(table: Matrix) -> None:
    """Ledgers hold it: the same table must keep it in every version."""
    tags = sorted(record_tags(b"key", NAMES, table).tolist())
    text = b"records" + N.to_bytes(8, "little") + b"".join(tag.to_bytes(8, "little") for tag in tags)
    assert fingerprint(b"key", NAMES, table) == "records:" + hmac.digest(b"key", text, "sha256").hex()


def test_columns_change_places_in_another_file(table: Matrix, mapped: Matrix) -> None:
    data = Dataset(NAMES, mapped)
    turned = data.reordered("abcde")
    assert lies_in_file(turned.X)
    assert np.array_equal(turned.X, table[:, ::-1])
    assert data.reordered(NAMES).X is mapped
    assert np.array_equal(data.reordered("ca").X, table[:, [2, 4]])


# ---- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(table: Matrix, tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("\n".join([",".join(NAMES), *(",".join(map(repr, row)) for row in table.tolist()), ""]), "utf-8")
    return path


def test_a_long_file_is_read_bit_for_bit_into_another(plain: Path, table: Matrix) -> None:
    data = Dataset.read(plain)
    assert lies_in_file(data.X)
    assert data.X.tobytes() == table.tobytes()


def test_a_quoted_row_of_another_width_is_refused_as_well(plain: Path) -> None:
    with plain.open("a") as file:
        file.write('1,2,3,4,"5",6\n')
    with pytest.raises(DataError, match=rf"1 row\(s\) without exactly {D} fields, the first in line {N + 2}"):
        Dataset.read(plain)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.long
def test_a_process_takes_little_memory_for_a_large_table(tmp_path: Path) -> None:
    """64 MiB of values within 32 MiB beyond what a small table takes: moments, fingerprint and a private step."""
    code = """
        import numpy as np
        from pathlib import Path
        from fedbnsl_client.data import mapped_array
        from fedbnsl_client.losses.blocked import BlockedGradient
        from fedbnsl_client.data.dataset import Dataset
        from fedbnsl_client.data.fingerprint import fingerprint
        from fedbnsl_client.losses.squared import SecondMoments
        mapped_array.MAPPED_BYTES = 0
        mapped_array.BLOCK_BYTES = 2**21
        rng = np.random.default_rng(0)

        def use(n_blocks):
            X = mapped_array.gathered((rng.standard_normal((2**14, 8)) for _ in range(n_blocks)), 8)
            data = Dataset(tuple("abcdefgh"), X).reordered("hgfedcba")
            SecondMoments.of(data.X)
            fingerprint(bytes(32), data.variables, data.X)
            gradient = BlockedGradient(data.X, np.ones(8))
            gradient.move_to(np.zeros((8, 8)))
            gradient.step(0, 1, 0.5)
            status = Path("/proc/self/status").read_text("utf-8")  # ru_maxrss starts from the parent's
            return int(status.split("VmHWM:")[1].split()[0]) / 1024

        small = use(4)
        print(use(64) - small)
    """
    outcome = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=True
    )
    assert float(outcome.stdout) < 32
