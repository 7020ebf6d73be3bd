"""Where a result comes from: which run and plan, who computed it with what and when, and the hashes of its files."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from fedbnsl.events.security_log import NAME
from fedbnsl.protocol.versions import own_versions
from fedbnsl_server.store import operator_commands
from fedbnsl_server.store.run_folder import LOCK, RunFolder

# Not in the manifest: the logs are still written after the results, and the lock is empty.
_UNHASHED = ("events.jsonl", "result.json", LOCK, NAME, operator_commands.COMMAND, operator_commands.ANSWER)

_PACKAGES = ("numba", "grpcio", "protobuf")  # beside what a run's bits depend on


def manifest(
    folder: RunFolder,
    *,
    run: int,
    private: bool,
    seeds: Mapping[str, int],
    site_versions: Mapping[str, Mapping[str, str]],
    created_at: datetime,
    study: str,
) -> dict[str, Any]:
    """The manifest of a run's folder, once its other files are written; `private` if the run's guarantee holds."""
    return {
        "run": f"{run:016x}",
        "study": study,
        "plan_digest": folder.plan.digest().hex(),
        "private": private,
        "seeds": dict(seeds),
        # What this process runs on, or would: numba also where no search has loaded it.
        "versions": own_versions() | {name: version(name) for name in _PACKAGES},
        "site_versions": {site: dict(told) for site, told in sorted(site_versions.items())},
        "created_at": created_at.isoformat(timespec="seconds"),
        "resumed_at": list(folder.past.resumed_at),
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sha256": {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(folder.path.iterdir())
            if file.is_file() and not file.name.startswith(_UNHASHED)
        },
    }
