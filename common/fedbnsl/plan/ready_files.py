"""Files that come with the package and are used by name: ready plans, and the grids of a search for settings."""

import difflib
import os
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fedbnsl.errors import PlanError

_SUFFIX = ".toml"


@dataclass(frozen=True)
class ReadyFiles:
    """TOML files of one folder of a package."""

    what: str
    """What one of them is called, such as "plan"."""
    folder: Traversable
    listing: str = ""
    """The command that shows the names; empty: an error lists them."""

    def names(self) -> list[str]:
        """All names."""
        found = (entry.name for entry in self.folder.iterdir())
        return sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))

    def resolve(self, given: str | Path) -> str | Path:
        """The name of a ready file as a string, or a path; a `Path` is never taken for a name.

        What has a separator or ends in .toml is a path. Anything else is the name of a ready file or, if there is none
        of that name, a path that exists; if it is neither, a PlanError gives similar names.
        """
        text = str(given)
        if isinstance(given, Path) or text.endswith(_SUFFIX) or any(mark in text for mark in {"/", os.sep}):
            return Path(given)
        names = self.names()
        if text in names:
            return text
        if Path(text).exists():
            return Path(text)
        near = difflib.get_close_matches(text, names, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        listed = f"{self.listing} lists the ready ones" if self.listing else f"ready are {', '.join(names)}"
        raise PlanError(
            f"{text!r} is neither a ready {self.what} nor a file{hint}; {listed}",
            remedy=f"Give a ready {self.what} by its name, or a file by its path.",
        )

    def file(self, given: str | Path) -> Traversable | Path:
        """What to read; see `resolve`."""
        resolved = self.resolve(given)
        if isinstance(resolved, Path):
            return resolved
        return self.folder / f"{resolved}{_SUFFIX}"

    def about(self, name: str) -> str:
        """The first line of a ready file, which says what it is for."""
        return self.file(name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


READY_PLANS = ReadyFiles("plan", files("fedbnsl.plan") / "ready", "fedbnsl plan list")

# What a plan file leaves out stays as in fed-sparse: a file that names no second moments never makes a site send any.
DEFAULT_PLAN = "lean"
"""The ready plan of `fedbnsl demo` and `FedSparseBNSL` where none is named; sites of their own always name theirs."""
