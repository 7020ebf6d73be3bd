"""A backup of a folder: one tar file, named by its time, in a folder of backups of which the newest are kept.

Programs may go on writing: each file is stored as it was at one moment, and the caller says which one comes first.
"""

import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO

import click

from fedbnsl.errors import SetupError
from fedbnsl.files import durable

_UNFINISHED = ".part"

OUT = click.option(
    "--out",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Folder of backups, which is there: the file is named by the time. On another disk, it outlives this one.",
)
KEEP = click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Remove older backups of the same name after this one is written, but the newest N.  [default: remove none]",
)


@dataclass(frozen=True)
class Archive:
    """A backup that was written."""

    file: Path
    n_files: int
    removed: tuple[Path, ...]  # older ones

    def __str__(self) -> str:
        gone = f"; removed {len(self.removed)} older" if self.removed else ""
        return f"wrote {self.file}: {self.n_files:,} files, {self.file.stat().st_size / 2**20:.1f} MiB{gone}"


def write_archive(
    folder: Path,
    out: Path,
    name: str,
    *,
    keep: int | None = None,
    instead: Mapping[str, Path | None] | None = None,
    order: Callable[[str], int] = lambda path: 0,
) -> Archive:
    """Write `<name>-<UTC time>.tar` of a folder, which only its owner can read, whole or not at all.

    Raises SetupError if `out` is in the folder; ResultError if a file cannot be read or written.

    Parameters
    ----------
    keep
        How many backups of this name stay, this one among them; None: all.
    instead
        By path in the folder, a file to store in place of the one there; None: the one there is left out.
    order
        Of paths in the folder: those with smaller numbers are stored first.
    """
    if out.resolve().is_relative_to(folder.resolve()):
        raise SetupError(f"{out} is in {folder}: each backup would hold all earlier ones", remedy="Give another --out.")
    file = out / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar"
    stored: list[str] = []
    write = partial(_write, folder=folder, instead=instead or {}, order=order, stored=stored)
    durable.write_file(file, write, mode=durable.OWNER_ONLY)
    named = re.compile(rf"{re.escape(name)}-\d{{8}}T\d{{6}}Z\.tar")
    of_name = sorted(each for each in out.iterdir() if named.fullmatch(each.name))
    removed = () if keep is None else tuple(of_name[:-keep])
    for each in removed:
        each.unlink(missing_ok=True)
    return Archive(file, len(stored), removed)


def _write(
    file: BinaryIO,
    *,
    folder: Path,
    instead: Mapping[str, Path | None],
    order: Callable[[str], int],
    stored: list[str],
) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        for path in sorted(_paths(folder), key=lambda path: (order(path), path)):
            source = instead.get(path, folder / path)
            if source is not None and _store(archive, source, path):
                stored.append(path)


def _paths(folder: Path) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if not name.endswith(_UNFINISHED):
                yield os.path.relpath(os.path.join(root, name), folder)


def _store(archive: tarfile.TarFile, source: Path, path: str) -> bool:
    """Whether it is a file; one that was removed meanwhile is left out."""
    try:
        mode = source.lstat().st_mode
        if not stat.S_ISREG(mode):
            if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
                archive.add(source, path, recursive=False)
            return False
        with source.open("rb") as content:
            # As large as it is now, whatever is appended while it is read.
            archive.addfile(archive.gettarinfo(arcname=path, fileobj=content), content)
    except FileNotFoundError:
        return False
    return True
