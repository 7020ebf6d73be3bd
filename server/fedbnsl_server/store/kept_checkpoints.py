"""Earlier checkpoints of a run, to which it can be set back: those of every k-th round, at most eight.

With T rounds in all, k is T / 8, rounded up. They lie in the folder `checkpoints` of the run folder.
"""

import re
from pathlib import Path

from fedbnsl.errors import ResultError
from fedbnsl.files import durable

FOLDER = "checkpoints"

_MOST = 8
_NAME = re.compile(r"round-(\d{6})\.npz")


class KeptCheckpoints:
    """The folder of the earlier checkpoints of a run that has `n_rounds` in all."""

    def __init__(self, folder: Path, n_rounds: int) -> None:
        self._folder = folder
        self._every = -(-n_rounds // _MOST)

    def keep(self, checkpoint: Path, t: int) -> None:
        """Keep a copy of the checkpoint of round t, if it is one of those that are kept."""
        if t % self._every:
            return
        durable.make_folder(self._folder)
        try:
            content = checkpoint.read_bytes()
        except OSError as error:
            raise ResultError(f"{checkpoint} cannot be read: {error.strerror}") from error
        durable.write_file(self.file(t), lambda file: file.write(content), mode=durable.OWNER_ONLY)

    def file(self, t: int) -> Path:
        """Where the checkpoint of round t is kept."""
        return self._folder / f"round-{t:06d}.npz"

    def rounds(self) -> list[int]:
        """Those that are there, ascending."""
        try:
            names = [path.name for path in self._folder.iterdir()] if self._folder.exists() else []
        except OSError as error:
            raise ResultError(f"{self._folder} cannot be read: {error.strerror}") from error
        return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))

    def forget_after(self, t: int) -> None:
        """Delete the checkpoints of later rounds: the run was set back, and they hold what was taken out."""
        try:
            for later in self.rounds():
                if later > t:
                    self.file(later).unlink(missing_ok=True)
        except OSError as error:
            raise ResultError(f"{error.filename} cannot be deleted: {error.strerror}") from error
