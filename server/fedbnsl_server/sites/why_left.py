"""Why a site has left a run, in words, and what the coordinator's operator can do about it."""

from collections.abc import Mapping
from typing import NamedTuple

from fedbnsl.protocol.messages import LeaveReason as Reason


class Why(NamedTuple):
    """Of one class of reasons."""

    word: str  # for the security log and narrow columns
    text: str = ""  # after "north left the run: "; empty where there is nothing to say
    to_do: str = ""


_AGAIN = "Then it joins again with the same command, while the run lasts."

WHY_LEFT: Mapping[Reason, Why] = {
    Reason.UNSPECIFIED: Why("unknown"),
    Reason.OPERATOR: Why("operator"),
    Reason.LOCAL_ERROR: Why("local error", "an error there", f"Its command and its log say which. {_AGAIN}"),
    Reason.POLICY: Why(
        "policy",
        "its policy or its table does not allow the run",
        "Its command and its log say which rule, or what has changed; nothing more is told here.",
    ),
    Reason.NOT_APPROVED: Why(
        "not approved",
        "nobody there has approved the plan",
        "Send it plan.toml of the run's folder; there: fedbnsl participant approve plan.toml FOLDER.",
    ),
    Reason.BUDGET: Why(
        "budget",
        "its privacy budget does not pay for the run",
        "Serve a plan that costs less; `fedbnsl participant approve` says there how much is left.",
    ),
    Reason.PEERS: Why(
        "peers",
        "too few of the other sites are confirmed there, or one has another key than the confirmed one",
        "Sites confirm each other's keys: fedbnsl participant peers FOLDER --confirm SITE FINGERPRINT.",
    ),
    Reason.SHORTAGE: Why(
        "shortage", "its ledger cannot be written: a full or failing disk, say", f"Let it make room. {_AGAIN}"
    ),
    Reason.SCHEMA: Why(
        "schema",
        "its variables, or what its data dictionary says of them, are not those of the run",
        "Send it the consortium's dictionary.toml and the plan; there: fedbnsl participant check FOLDER.",
    ),
    Reason.CERTIFICATE: Why(
        "certificate",
        "its certificate was revoked, or has expired",
        "If it has expired: there fedbnsl participant request FOLDER --renew, and here coordinator approve.",
    ),
}
