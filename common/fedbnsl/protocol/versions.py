"""What a process computes with. Runs give equal bits only where all of this is equal at every party.

Nothing here names the machine, its user or a path: it goes to the coordinator and into the results.
"""

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from fedbnsl import __version__

_LONGEST = 40
_MOST = 16
_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-_ ")


def own_versions() -> dict[str, str]:
    """fedbnsl, Python, numpy, scipy, BLAS, numba if it is loaded, and the processor's architecture."""
    found = {"fedbnsl": __version__, "python": platform.python_version(), "numpy": np.__version__}
    try:
        found["scipy"] = version("scipy")
    except PackageNotFoundError:
        found["scipy"] = "none"
    found["blas"] = _blas()
    numba = sys.modules.get("numba")
    if numba is not None:
        found["numba"] = str(numba.__version__)
    found["architecture"] = platform.machine()
    return {name: "".join(c if c in _ALLOWED else "-" for c in text)[:_LONGEST] for name, text in found.items()}


def _blas() -> str:
    """Name and version of the library that numpy was built with; of its settings nothing, for they hold paths."""
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def why_unusable(versions: Mapping[str, str]) -> str:
    """What is wrong with versions that somebody else told; empty if nothing is."""
    if len(versions) > _MOST:
        return f"{len(versions)} versions; a site tells at most {_MOST}"
    for text in (*versions.keys(), *versions.values()):
        if not 0 < len(text) <= _LONGEST or not _ALLOWED.issuperset(text):
            return f"a version that is not 1 to {_LONGEST} plain letters, digits, blanks, '.', '+', '-' or '_'"
    return ""
