"""What a machine may lack for a while: room on a disk, open files, memory. A coordinator waits for it."""

import errno
import os
import sqlite3

# A disk that fails or turned read-only is among them: somebody can mend it while the sites wait.
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EROFS}
_PASSING_OF_SQLITE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}


def shortage(error: BaseException) -> str:
    """What was lacking, in the system's words, which hold no path; empty if an error has another cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return os.strerror(errno.ENOMEM)
        if isinstance(cause, OSError) and cause.errno in _PASSING:
            return os.strerror(cause.errno)
        if isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) & 0xFF in _PASSING_OF_SQLITE:
            return str(cause)
        cause = cause.__cause__
    return ""
