"""The least that a result.json holds of a run of one round, for tests that write one by hand."""

from typing import Any

_NOTHING = {"formula": 0, "serialised": 0}

LEAST_RESULT: dict[str, Any] = {
    "schema": "fedbnsl.result/1",
    "state": "finished",
    "reason": "",
    "orientation": "",
    "variables": [],
    "edges": [],
    "dropped_edges": [],
    "warnings": [],
    "privacy": None,
    "influence": {"limit": 6.0, "unknown_because": "one site", "sites": {}},
    "acyclicity": 0.0,
    "sites": {},
    "bytes": {"up": _NOTHING, "down": _NOTHING, "control": 0, "meaning": ""},
    "seconds": {"total": 0.0, "local": 0.0, "global": 0.0},
    "rounds": [
        {
            "round": 1,
            "kind": "admm",
            "contributed": [],
            "acyclicity": 0.0,
            "edges": 2,
            "local_s": 0.0,
            "global_s": 0.0,
            "bytes": {},
        }
    ],
    "manifest": {
        "run": "0",
        "plan_digest": "",
        "private": False,
        "seeds": {},
        "resumed_at": [],
        "versions": {},
        "site_versions": {},
        "created_at": "2026-11-25T13:00:00+00:00",
        "ended_at": "2026-11-25T13:00:01+00:00",
        "sha256": {},
    },
}
