"""Files that commands write: refused before any work where they are there already, or cannot be written."""

import shlex
from pathlib import Path

from fedbnsl.errors import SetupError


def require_new(out: Path) -> None:
    """Raise SetupError if the file exists, or its folder does not."""
    if out.exists():
        raise SetupError(f"{out} exists: it is not overwritten", remedy="Give another --out.")
    if not out.parent.is_dir():
        made = f"mkdir -p {shlex.quote(str(out.parent))}"
        raise SetupError(f"{out}: there is no folder {out.parent}", remedy=f"Make it ({made}), or give another --out.")
