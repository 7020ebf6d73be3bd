"""Lock a ledger, so that one transaction at a time changes it; refuse file systems whose locks cannot be trusted."""

import fcntl
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from fedbnsl.errors import LedgerError

# Their locks and syncs depend on a server, a mount option and luck: two machines could spend the same budget.
# fmt: off
NETWORK_FILESYSTEMS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "virtiofs", "afs", "coda", "ceph", "glusterfs", "lustre",
    "gpfs", "orangefs", "beegfs", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse",
    "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.davfs2", "fuse.juicefs", "fuse.curlftpfs", "fuse.smbnetfs",
})
# fmt: on
_RETRY_S = 0.005
_MOUNTS = Path("/proc/self/mounts")  # the mounts as this process sees them; what /proc/mounts points to


class LedgerBusyError(LedgerError):
    """Another process uses the ledger, or takes part in the run."""

    remedy = "Wait until that process has ended."


class OwnerLock:
    """The lock on `<path>.lock`, held until it is released or the process ends, even by a crash."""

    def __init__(self, descriptor: int, passing: Path | None = None) -> None:
        self._descriptor = descriptor
        self._passing = passing

    @classmethod
    def of(cls, path: Path, *, patience_s: float = 0.0, passing: bool = False) -> Self:
        """Lock a ledger, given by its real path, or something of it; wait `patience_s` for another that holds it.

        With `passing`, the lock file is removed at the release: it stands for something that passes. Raises
        LedgerBusyError if another process, or thread, holds it for longer; LedgerError if the lock file cannot be made.
        """
        file = Path(f"{path}.lock")
        until = time.monotonic() + patience_s
        while True:
            descriptor = _open(file)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A file that was removed meanwhile is the lock of nothing: somebody may have locked a new one.
                if not passing or _is_still(file, descriptor):
                    return cls(descriptor, file if passing else None)
                os.close(descriptor)
                continue
            except BlockingIOError:
                os.close(descriptor)
            except OSError as error:
                os.close(descriptor)
                raise LedgerError(f"{file} cannot be locked: {error.strerror or error}") from error
            if time.monotonic() >= until:
                raise LedgerBusyError(
                    f"ledger {path} is in use by another process: a run of this site, or another command"
                )
            time.sleep(_RETRY_S)

    def note(self, text: str) -> None:
        """Write what the others shall know while it is held. Raises LedgerError if there is no room for it."""
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode(), 0)
        except OSError as error:
            raise LedgerError(f"the lock of a run cannot be written: {error.strerror or error}") from error

    @classmethod
    def notes(cls, files: Iterable[Path]) -> dict[Path, str]:
        """What those have noted that hold a lock now; a lock file of a process that was killed is held by nobody.

        Raises LedgerError if a file cannot be read: what it says might count.
        """
        found: dict[Path, str] = {}
        for file in files:
            try:
                with suppress(FileNotFoundError), file.open("rb") as held:
                    try:
                        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    except BlockingIOError:
                        found[file] = held.read().decode()
            except OSError as error:
                raise LedgerError(f"{file} cannot be read: {error.strerror or error}") from error
        return found

    def release(self) -> None:
        """Let another process have it."""
        if self._passing is not None:
            with suppress(FileNotFoundError):
                self._passing.unlink()  # while it is locked
        os.close(self._descriptor)


def _open(file: Path) -> int:
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(f"{file} cannot be opened: {error.strerror or error}") from error


def _is_still(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def refuse_second_name(ledger: Path) -> None:
    """Refuse a ledger with a hard link: under its other name it has another lock.

    Raises LedgerError if the file has more than one name, or is gone.
    """
    try:
        n_names = os.stat(ledger).st_nlink
    except OSError as error:
        raise LedgerError(f"ledger {ledger} cannot be opened: {error.strerror or error}") from error
    if n_names > 1:
        raise LedgerError(
            f"ledger {ledger} has {n_names} names (hard links); under each of them it could be in use at the same time",
            remedy="Remove the other names (`find FOLDER -samefile ledger.db` lists those in a folder); copy with cp.",
        )


def refuse_network(ledger: Path) -> None:
    """Refuse a ledger, given by its real path, on another machine's disk.

    A system without a table of mounts (anything but Linux) cannot tell, and nothing is refused. Raises LedgerError if
    its file system is one of NETWORK_FILESYSTEMS.
    """
    try:
        mounts = os.fsdecode(_MOUNTS.read_bytes())
    except OSError:
        return
    kind = filesystem_of(ledger, mounts)
    if kind in NETWORK_FILESYSTEMS:
        raise LedgerError(
            f"ledger {ledger} lies on a network file system ({kind}), whose locks do not keep two machines apart; "
            "put it on a local disk"
        )


def filesystem_of(path: Path, mounts: str) -> str:
    """The kind of file system that an absolute path without links lies on; empty if no mount holds it.

    `mounts` is the text of /proc/mounts: device, mount point, kind, and more, one mount a line.
    """
    longest, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # Blanks and the like stand as three octal digits.
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1]))
        # The deepest mount point holds the path; of several mounts on one point the last one hides the others.
        if path.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), fields[2]
    return kind
