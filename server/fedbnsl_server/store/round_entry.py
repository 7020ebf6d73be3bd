"""What result.json and events.jsonl say of a round: who contributed, what was sent, and what it led to."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedbnsl.protocol.sparse import formula_bytes
from fedbnsl_server.results.data_quality import as_entries
from fedbnsl_server.results.outlier_scores import as_entry
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.sites.mailbox import Traffic


def round_entry(
    record: RoundRecord, variables: Sequence[str], sites: Iterable[str], traffic: Traffic
) -> dict[str, Any]:
    """The entry of a round, for all sites that take part, whether or not they contributed to it."""
    d = len(variables)
    t = record.round
    contributed = set(record.contributed)
    down = formula_bytes(record.entries_down, d, indexed=record.indexed_down)
    findings = as_entries(record.findings, variables)
    influence = as_entry(record.influence, variables)
    return {
        **({"findings": findings} if findings else {}),
        **({"influence": influence} if influence else {}),
        **({"left_out": list(record.left_out)} if record.left_out else {}),
        "round": t,
        "kind": record.kind,
        "contributed": list(record.contributed),
        "acyclicity": record.acyclicity,
        "edges": record.edges,
        **({"undirected": record.undirected} if record.undirected else {}),
        **({"ended_in": record.ended_in} if record.ended_in else {}),
        "local_s": round(record.local_s, 6),
        "global_s": round(record.global_s, 6),
        "bytes": {
            site: {
                "up": {
                    "formula": formula_bytes(record.entries_up.get(site, 0), d, indexed=record.indexed_up),
                    "serialised": traffic.up[site][t],
                },
                "down": {
                    # A site that is away pulls nothing. One that answers has pulled, maybe before a restart.
                    "formula": down if traffic.down[site][t] or site in contributed else 0,
                    "serialised": traffic.down[site][t],
                },
            }
            for site in sites
        },
    }


def total(entries: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """The sum over the bytes of several sites or rounds."""
    return {
        direction: {kind: sum(entry[direction][kind] for entry in entries) for kind in ("formula", "serialised")}
        for direction in ("up", "down")
    }
