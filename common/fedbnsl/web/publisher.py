"""What a page shows, as it is now: published from the threads of a run, read by the thread of the page.

    publisher = SnapshotPublisher()
    publisher.show("now", lambda: {"round": 3})    # newest content counts; made only when somebody looks
    publisher.add("log", "site-1 joined")          # a list that grows

Publishing stores a reference and at most wakes the page's thread: it never waits for a viewer, and nothing is made or
encoded unless somebody looks.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fedbnsl.files.json_numbers import finite

_log = logging.getLogger(__name__)

_FRESH_S = 0.4

Made = Callable[[], Any]
"""Makes what JSON can hold; called by the page's thread, at most once for what was published."""


class _Section:
    """Content that is replaced."""

    def __init__(self) -> None:
        self.version = 0
        self.make: Made = lambda: None
        self._encoded = (0, b"null")
        self._made_s = -math.inf

    def encoded(self, *, newest: bool) -> tuple[int, bytes]:
        """The version that was made last, and what it is; it is made again at most a few times a second."""
        if self._encoded[0] != self.version and (newest or time.monotonic() - self._made_s > _FRESH_S):
            version = self.version  # first: what is published meanwhile is encoded the next time
            self._encoded = version, as_json(self.make())
            self._made_s = time.monotonic()
        return self._encoded


class _List:
    """Items that are added; a long list loses its oldest items, or every other one of the older half."""

    def __init__(self, most: int, *, thinned: bool) -> None:
        self.items: list[tuple[int, Any]] = []
        self.number = 0
        self.generation = 0
        self._most, self._thinned = most, thinned

    def add(self, item: Any) -> None:
        self.number += 1
        self.items.append((self.number, item))
        if len(self.items) > self._most:
            half = self._most // 2
            if self._thinned:
                self.items = self.items[:half:2] + self.items[half:]
                self.generation += 1  # a viewer starts again, so that all viewers see the same
            else:
                self.items = self.items[-half:]


class SnapshotPublisher:
    """Sections and lists of one page.

    `lists` says how many items of each list are kept. Lists that are `thinned` keep their beginning: of a long one,
    every other item of the older half is left out.
    """

    def __init__(self, lists: Mapping[str, int] | None = None, *, thinned: tuple[str, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._sections: dict[str, _Section] = {}
        self._lists = {name: _List(most, thinned=name in thinned) for name, most in (lists or {}).items()}
        self._wake: Callable[[], None] = lambda: None
        self._woken = False
        # Called by the page's thread about once a second while there are viewers, to publish what changes by itself.
        self.refresh: Callable[[], Awaitable[None]] | None = None
        self.viewers = 0  # at present

    def show(self, section: str, make: Made) -> None:
        """Replace a section."""
        with self._lock:
            kept = self._sections.setdefault(section, _Section())
            kept.make, kept.version = make, kept.version + 1
        self._changed()

    def add(self, name: str, item: Any) -> None:
        """Add an item to a list."""
        with self._lock:
            self._lists[name].add(item)
        self._changed()

    def on_change(self, wake: Callable[[], None]) -> None:
        """Call this, from any thread, after something was published; once until `looked`."""
        self._wake = wake

    def looked(self) -> None:
        """Somebody looks now: wake again at the next change."""
        self._woken = False

    def _changed(self) -> None:
        if self.viewers and not self._woken:
            self._woken = True
            self._wake()

    def news(self, seen: dict[str, tuple[int, int]], *, newest: bool = True) -> list[tuple[str, bytes]]:
        """What a viewer has not seen yet, as names and JSON; `seen` is brought up to date.

        A list comes as {"anew": ..., "items": [...]}: anew if what was sent before does not count any more. `newest`:
        otherwise what was made for another viewer a moment ago will do.
        """
        with self._lock:
            sections, lists = dict(self._sections), dict(self._lists)
        found: list[tuple[str, bytes]] = []
        for name, items in lists.items():
            generation, number = seen.get(name, (-1, 0))
            with self._lock:
                anew = generation != items.generation
                new = [item for k, item in items.items if anew or k > number]
                seen[name] = items.generation, items.number
            if new or anew:
                found.append((name, as_json({"anew": anew, "items": new})))
        for name, section in sections.items():
            if seen.get(name, (0, 0))[1] == section.version:
                continue
            try:
                version, text = section.encoded(newest=newest)
            except Exception:  # a page lacks a part rather than ends
                _log.exception("the part %r of a page cannot be made", name)
                seen[name] = 0, section.version
                continue
            if seen.get(name, (0, 0))[1] != version:
                seen[name] = 0, version
                found.append((name, text))
        return found

    def snapshot(self) -> bytes:
        """All of it as one JSON object."""
        return b"{" + b",".join(as_json(name) + b":" + text for name, text in self.news({})) + b"}"


def as_json(content: Any) -> bytes:
    """JSON on one line; a number that is not finite becomes null, which JSON has no other word for."""
    return json.dumps(finite(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
