"""A headless Chromium for tests of pages, or a skip that says why there is none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

LONG_MS = 120_000.0  # for what happens on a page, beside any other load
expect.set_options(timeout=LONG_MS)

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium_path() -> str:
    """The program: of FEDBNSL_CHROMIUM, or the first found on the path; skips the test without one."""
    named = os.environ.get("FEDBNSL_CHROMIUM")
    found = named or next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"needs a browser: install chromium, or name one by FEDBNSL_CHROMIUM (none of {', '.join(_NAMES)})")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    path = chromium_path()
    with sync_playwright() as playwright:
        # In a container, its shared memory may be too small for a page.
        args = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=args, timeout=LONG_MS)
        yield browser
        browser.close()
