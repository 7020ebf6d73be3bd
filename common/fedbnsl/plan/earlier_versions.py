"""Plans of earlier versions: settings that are gone, names that have changed, and settings that have come since.

Run folders hold every setting under the names of their time; approvals and checkpoints hold digests.
"""

from collections.abc import Mapping
from typing import Any, cast

# Settings that earlier versions had: the value that now always holds, and what to do about another one.
_CONTINUATION = "leave it out; acyclicity_schedule = 'augmented' has settings"
GONE: dict[str, tuple[Any, str]] = {
    "acyclicity": ("exponential", "leave it out; h(W) is tr exp(W o W) - d"),
    "acyclicity_penalty_max": (1e12, "leave it out; 1e12 is the largest"),
    "continuation_start": (0.1, _CONTINUATION),
    "continuation_end": (1000.0, _CONTINUATION),
    "continuation_share": (0.8, _CONTINUATION),
    "continuation_growth": (1.3, _CONTINUATION),
    "edge_penalty": ("auto", "leave it out; what an edge must gain depends on the rows"),
    "starts": ([], "leave it out; the search needs one start"),
    "zero_tolerance": (0.0, "leave it out, or set send_tolerance instead"),
}

# Settings of [privacy] under the names that earlier versions wrote into run folders.
_RENAMED = {"secure_sum": "secure_aggregation", "secure_sum_retries": "secure_aggregation_retries"}

# Settings that older digests lack: false, 0 or empty, they do what versions without them did.
_LATER = (
    "absent",
    "counts_rounds",
    "interventions",
    "look_at_noise",
    "look_for_curves",
    "regressions_rounds",
    "tell_means",
)


def in_present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a plan of any version as this one has them."""
    # The plan.toml of a run folder has every setting: one that is gone is no error where it says what now holds.
    settings = {name: value for name, value in settings.items() if name not in GONE or value != GONE[name][0]}
    given = settings.get("privacy")
    if isinstance(given, Mapping):  # a setting under both names keeps the old one, which is refused
        names = {old: new for old, new in _RENAMED.items() if new not in given}
        table = cast(Mapping[str, Any], given)
        settings["privacy"] = {names.get(name, name): value for name, value in table.items()}
    return settings


def as_first_digested(content: Mapping[str, Any]) -> dict[str, Any]:
    """What is digested of a plan: settings under their first names, later ones only where they change something."""
    content = {name: value for name, value in content.items() if value or name not in _LATER}
    if content["hidden_causes"] == "allowed":  # as versions without it did
        del content["hidden_causes"]
    if content["validation"] == "none":  # likewise
        del content["validation"]
    if content["preparation"] is not None and content["preparation"]["outlying"] == "keep":
        content["preparation"] = {k: v for k, v in content["preparation"].items() if k != "outlying"}
    if content["privacy"] is not None:
        granted = {"sites_per_person": 1, "persons_by": "means"}  # as versions without these took for granted
        content["privacy"] = {k: v for k, v in content["privacy"].items() if (k, v) not in granted.items()}
        first = {new: old for old, new in _RENAMED.items()}
        content["privacy"] = {first.get(name, name): value for name, value in content["privacy"].items()}
    return content
