"""The report of a run that is over, made by `fedbnsl report` where that command is installed.

It is made by a process of its own: drawing charts takes seconds of a processor, and other runs may go on here.
"""

import asyncio
import re
import shlex
import sys
import tempfile
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

_MOST_S = 120.0

# What a report may ask for of a browser; its script is named by its digest, so that no other runs.
_POLICY = re.compile(r'http-equiv="Content-Security-Policy"\s+content="([^"]+)"')
_ALLOWED = re.compile(
    r"(default-src 'none'|(img-src|font-src) data:|style-src 'unsafe-inline'|script-src 'sha256-[A-Za-z0-9+/=]+'|"
    r"(base-uri|form-action) 'none')"
)
_WITHOUT_SCRIPT = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_FRAMED = "frame-ancestors 'self'; sandbox allow-scripts allow-popups"


@cache
def can_be_made() -> bool:
    """Whether this installation has the command."""
    return any(one.name == "report" for one in entry_points(group="fedbnsl.commands"))


def command(folder: Path) -> str:
    """What an operator types to make it."""
    return shlex.join(["fedbnsl", "report", str(folder)])


async def made(folder: Path) -> str | None:
    """The report as a page; None if it cannot be made."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "report.html")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fedbnsl", "report", str(folder), "--out", str(out)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await asyncio.wait_for(process.wait(), _MOST_S)
        except (TimeoutError, asyncio.CancelledError):
            process.kill()
            await process.wait()
            raise
        return out.read_text(encoding="utf-8") if process.returncode == 0 and out.exists() else None


def policy_of(page: str) -> str:
    """The content security policy of a report: its own, if it asks for no more than a report needs."""
    found = _POLICY.search(page)
    parts = (
        [] if found is None else [part.strip() for part in found[1].replace("&#39;", "'").split(";") if part.strip()]
    )
    own = "; ".join(parts) if parts and all(map(_ALLOWED.fullmatch, parts)) else _WITHOUT_SCRIPT
    return f"{own}; {_FRAMED}"
