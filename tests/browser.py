"""A headless Chromium for tests of pages, or a skip that says why there is none."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

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


def scrolls_sideways(page: Page) -> bool:
    """Whether the page is wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def hard_to_read(page: Page, *, least: float = 4.5) -> list[str]:
    """Texts outside drawings whose contrast with what is behind them, by computed styles, is below WCAG's 4.5."""
    found: list[list[str]] = page.evaluate(
        """() => [...document.querySelectorAll('body *')]
          .filter(e => !e.closest('svg, button:disabled') && e.getClientRects().length
            && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
          .map(e => {
            let b = e;
            while (b && getComputedStyle(b).backgroundColor === 'rgba(0, 0, 0, 0)') b = b.parentElement;
            const paper = getComputedStyle(b || document.documentElement).backgroundColor;
            return [getComputedStyle(e).color, b ? paper : 'rgb(255, 255, 255)', e.outerHTML.slice(0, 80)];
          })"""
    )
    assert len(found) > 5, "a page has words"
    return [what for ink, paper, what in found if _contrast(ink, paper) < least]


def _contrast(*colours: str) -> float:
    """Of WCAG 2."""
    dark, light = sorted(map(_luminance, colours))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(x) / 255 for x in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
