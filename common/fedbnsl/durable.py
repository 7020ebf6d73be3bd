"""Files that are written whole or not at all, and that outlive a power cut once they are."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from fedbnsl.errors import ResultError


def make_folder(path: Path) -> None:
    """Make a folder and those above it; one that is there already is fine.

    Raises
    ------
    ResultError
        If it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"folder {path} cannot be made: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    r"""Write a UTF-8 file whole or not at all; lines end in \n on every system.

    Raises
    ------
    ResultError
        If the file cannot be written.
    """
    content = text.encode()
    write_file(path, lambda file: file.write(content))


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file whole or not at all: write a temporary file next to it, sync it to disk, rename it into place.

    When this returns, the file survives a power cut.

    Raises
    ------
    ResultError
        If it cannot be written; the old file stays.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise ResultError(f"{path} cannot be written: {error.strerror or error}") from None
