"""Write files whole or not at all; a written file survives a power cut."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from fedbnsl.errors import ResultError

OWNER_ONLY = 0o600
"""Mode of a file that nobody but its owner may read."""


def make_folder(path: Path) -> None:
    """Make a folder and its parents; an existing folder is fine. Raises ResultError if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"folder {path} cannot be made: {error.strerror}") from error


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    r"""Write a UTF-8 file whole or not at all; lines end in \n on every system.

    Raises ResultError if the file cannot be written.
    """
    content = text.encode()
    write_file(path, lambda file: file.write(content), mode=mode)


def write_file(path: Path, write: Callable[[BinaryIO], object], *, mode: int = 0o666) -> None:
    """Write a file whole or not at all: write a temporary file next to it, sync it to disk, rename it into place.

    When this returns, the file survives a power cut. Raises ResultError if it cannot be written; the old file stays.
    `mode`: of the file, less what the process's umask takes away.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.unlink(missing_ok=True)  # one that a crash has left may have another mode
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except (OSError, MemoryError) as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, MemoryError):
            raise
        raise ResultError(f"{path} cannot be written: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that new and renamed files survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
