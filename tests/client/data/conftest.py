"""Fixtures of tests of tables."""

import pytest

from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.sources import csv_table


@pytest.fixture(params=["at once", "by blocks"])
def each_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a table in one block and in memory; a few rows at a time and mapped."""
    if request.param == "by blocks":
        monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 0)
        monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 1)
        monkeypatch.setattr(mapped_array, "_ROWS_ALIKE", 4)
        monkeypatch.setattr(csv_table, "_ROWS_AS_TEXT", 3)
