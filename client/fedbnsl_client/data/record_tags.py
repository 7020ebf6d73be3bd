"""Know records again in a table that has grown, by keyed tags that only the holder of the key can compute.

A tag is 8 bytes of a keyed BLAKE2b of one record: of its values, or of its person where a record is what is known of
one. Neither tags nor key leave the site. Two of 10^7 records get one tag by accident with probability 3e-6.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.mapped_array import RowsElsewhere, of_each_block
from fedbnsl_client.data.person_rows import Persons
from fedbnsl_client.data.sorted_rows import comparable

Tags = NDArray[np.uint64]

TAG_BYTES = 8
LEAST_OVERLAP = 0.05
"""Share of a table's records that must be another's, beyond what chance explains, to take them for the same."""

_AT_A_TIME = 16_384  # rows, of which there is a copy

_SURE = 4.0  # standard deviations beyond chance


@dataclass(frozen=True)
class RecordTags:
    """What makes tags of blocks of rows, wherever these are: Dask workers of the site get it, key and all.

    Attributes
    ----------
    order
        Of the columns, by their names.
    """

    key: bytes = field(repr=False)  # workers log what failed
    names: tuple[str, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, key: bytes, variables: Sequence[str]) -> Self:
        """For a table with these columns; see `record_tags`."""
        order = tuple(sorted(range(len(variables)), key=lambda k: variables[k]))
        return cls(key, tuple(variables[k] for k in order), order)

    def __call__(self, block: Matrix) -> Tags:
        """(rows,) tags of the records of a block."""
        code = hashlib.blake2b(key=self.key, digest_size=TAG_BYTES, person=b"record")
        for name in map(str.encode, self.names):
            code.update(len(name).to_bytes(8, "little") + name)
        found: list[Tags] = [np.empty(0, dtype=np.uint64)]
        for start in range(0, len(block), _AT_A_TIME):
            values = comparable(block[start : start + _AT_A_TIME, self.order])
            values = np.ascontiguousarray(values, dtype="<f8")
            found.append(_tags_of(values.view(f"V{8 * len(self.order)}")[:, 0].tolist(), code))
        return np.concatenate(found)


def record_tags(
    key: bytes, variables: Sequence[str], X: Matrix | RowsElsewhere, persons: Persons | None = None
) -> Tags:
    """(n,) tags of the records of a table, which hang neither on their order nor on that of the columns.

    Parameters
    ----------
    key
        32 random bytes.
    variables
        d distinct column names.
    X
        (n, d) values; NaN where one is missing.
    persons
        Where each record is another person's: the values then do not matter.
    """
    if persons is not None:
        code = hashlib.blake2b(key=key, digest_size=TAG_BYTES, person=b"person")
        return _tags_of([name.encode() for name in persons.names], code)
    return np.concatenate([np.empty(0, dtype=np.uint64), *of_each_block(X, RecordTags.of(key, variables))])


def _tags_of(records: Sequence[bytes], code: "hashlib.blake2b") -> Tags:
    digests = bytearray()
    for record in records:
        of_one = code.copy()
        of_one.update(record)
        digests += of_one.digest()
    return np.frombuffer(bytes(digests), dtype="<u8").astype(np.uint64)


def blocks_of(tags: Tags, known: Sequence[Tags]) -> Index:
    """(n,) which of the known blocks each record is in, by its position; -1: in none.

    Of equal records, as many are in a block as were before, those of earlier blocks first.
    """
    of_block = np.repeat(np.arange(len(known)), [len(one) for one in known])
    there = np.concatenate([np.empty(0, dtype=np.uint64), *known])
    by_tag = np.argsort(there, kind="stable")
    there, of_block = there[by_tag], of_block[by_tag]
    order = np.argsort(tags, kind="stable")
    ordered = tags[order]
    copy = np.arange(len(tags)) - np.searchsorted(ordered, ordered)  # 0 for the first of equal records
    place = np.searchsorted(there, ordered) + copy
    found = np.full(len(tags), -1, dtype=np.int64)
    is_known = place < np.searchsorted(there, ordered, "right")
    found[order[is_known]] = of_block[place[is_known]]
    return found


def share_by_chance(tags: Tags) -> float:
    """Share of the records of other people of the same kind that are expected to have an equal one in a table.

    It is the share of its own records that occur in it more than once (Good 1953).
    """
    _, counts = np.unique(tags, return_counts=True)
    return 1.0 - int((counts == 1).sum()) / max(len(tags), 1)


def overlap(one: Tags, other: Tags) -> float:
    """Share of the records of one table that are records of another (0 to 1), beyond what chance explains.

    0 where chance explains what is found: all that there is where a table has two columns of zeros and ones, of which
    then nothing can be told; nothing where a column was measured finely.
    """
    if not len(one) or not len(other):
        return 0.0
    by_chance = share_by_chance(other)
    found = float(np.isin(one, other).mean())
    spread = math.sqrt(by_chance * (1.0 - by_chance) * (1.0 / len(one) + 1.0 / len(other)))
    if by_chance >= 1.0 or found <= by_chance + _SURE * spread:
        return 0.0
    beyond = (found - by_chance) / (1.0 - by_chance)
    return beyond if beyond >= LEAST_OVERLAP else 0.0
