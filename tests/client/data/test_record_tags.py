"""Keyed tags of records: known again in a table that has grown, and in a table under another name."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.person_rows import PersonRows, Persons
from fedbnsl_client.data.record_tags import Tags, blocks_of, overlap, record_tags

KEY = b"k" * 32
NAMES = ("age", "crp", "sex")
TABLE = np.random.default_rng(3).normal(size=(400, 3))


def tags(X: Matrix, names: tuple[str, ...] = NAMES, key: bytes = KEY) -> Tags:
    return record_tags(key, names, X)


def test_a_tag_hangs_on_key_names_and_every_bit_of_a_record_and_not_on_orders() -> None:
    known = tags(TABLE)
    assert len(set(known.tolist())) == len(TABLE)
    order = np.random.default_rng(1).permutation(len(TABLE))
    assert (tags(np.asfortranarray(TABLE[order][:, [2, 0, 1]]), ("sex", "age", "crp")) == known[order]).all()
    changed = TABLE.copy()
    changed[7, 1] = np.nextafter(changed[7, 1], np.inf)
    assert np.flatnonzero(tags(changed) != known).tolist() == [7]
    for other in (
        tags(TABLE, key=b"j" * 32),
        tags(TABLE, ("age", "crp", "weight")),
        tags(TABLE, ("ag", "ecrp", "sex")),
    ):
        assert not np.isin(other, known).any()


def test_zeros_of_both_signs_are_alike_and_so_are_gaps_of_all_forms() -> None:
    other_nan = np.frombuffer((0x7FF8000000000001).to_bytes(8, "little"))[0]
    X, Y = np.array([[0.0, np.nan, 1.0]]), np.array([[-0.0, other_nan, 1.0]])
    assert tags(X) == tags(Y) != tags(np.array([[0.0, 0.0, 1.0]]))


def test_a_table_that_lies_in_a_file_has_the_same_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    known = tags(TABLE)
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 100)
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 64 * 24)
    assert (tags(mapped_array.gathered(iter([TABLE]), 3)) == known).all()


def test_a_person_is_known_by_the_name_alone() -> None:
    names = ("ada", "bo", "cy")
    rows = PersonRows(TABLE[:3], np.ones(3, dtype=np.int64))
    known = record_tags(KEY, NAMES, TABLE[:3], Persons(names, rows))
    assert (record_tags(KEY, NAMES[:2], TABLE[5:8, :2], Persons(names[::-1], rows)) == known[::-1]).all()
    assert not np.isin(tags(TABLE[:3]), known).any()


copies = st.lists(st.integers(0, 5), max_size=20)


@given(copies, st.lists(copies, max_size=3))
def test_as_many_equal_records_are_in_a_block_as_were_before(now: list[int], blocks: list[list[int]]) -> None:
    found = blocks_of(np.array(now, np.uint64), [np.array(one, np.uint64) for one in blocks])
    left = [Counter(one) for one in blocks]
    for record in sorted(set(now)):
        expected = []
        for _ in range(now.count(record)):
            block = next((k for k, there in enumerate(left) if there[record]), -1)
            if block >= 0:
                left[block][record] -= 1
            expected.append(block)
        assert [block for one, block in zip(now, found.tolist(), strict=True) if one == record] == expected


def other_people(seed: int, n: int, m: int) -> tuple[Matrix, Matrix]:
    """Two tables of other people of one kind: categories and counts, which depend on each other."""
    random = np.random.default_rng(seed)
    d, n_levels = random.integers(2, 12), random.integers(2, 5)
    cause = random.normal(size=(n + m, 1))
    X = np.clip(np.round(cause * random.normal(size=d) + random.normal(size=(n + m, d)) + 1), 0, n_levels - 1)
    return X[:n], X[n:]


def alike(X: Matrix, Y: Matrix) -> bool:
    names = tuple(map(str, range(X.shape[1])))
    of_X, of_Y = tags(X, names), tags(Y, names)
    return max(overlap(of_X, of_Y), overlap(of_Y, of_X)) > 0.0


def test_tables_of_other_people_are_hardly_ever_taken_for_the_same() -> None:
    sizes = [(50, 2000), (300, 300), (2000, 500)]
    assert sum(alike(*other_people(seed, *sizes[seed % 3])) for seed in range(150)) <= 2
    assert not alike(TABLE, TABLE + 1.0)


@pytest.mark.parametrize(
    "other",
    [TABLE, TABLE[:-1], TABLE[:200], np.vstack([TABLE, TABLE + 1.0]), np.vstack([TABLE[:40], TABLE + 1.0])],
    ids=["itself", "one less", "a half", "more", "a tenth of it, among others"],
)
def test_records_are_found_again_in_a_table_with_more_or_fewer(other: Matrix) -> None:
    assert alike(TABLE, other)
    assert alike(other, TABLE)


def test_of_two_columns_of_zeros_and_ones_nothing_is_said() -> None:
    X = np.random.default_rng(1).integers(0, 2, size=(500, 2)).astype(float)
    assert not alike(X, X[:100])
