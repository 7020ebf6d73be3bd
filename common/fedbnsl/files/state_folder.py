"""Where this user's programs note what must not lie, and be replaced or restored, beside the file it is about."""

import os
from pathlib import Path


def state_folder() -> Path | None:
    """`fedbnsl` in the user's state directory: $XDG_STATE_HOME or ~/.local/state. None: neither is there."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        state = named if named.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:  # no home directory
        return None
    return state / "fedbnsl"
