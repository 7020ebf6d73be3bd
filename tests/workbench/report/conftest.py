"""Shared by tests of pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a file; they are skipped where there is none."""
    with chromium() as started:
        yield started
