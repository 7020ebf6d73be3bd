"""What a site's agent keeps of the runs that it took part in: a folder each.

OUT/NAME-NUMBER/plan.toml                  as it was agreed
OUT/NAME-NUMBER/edges.csv                  the learned graph
OUT/NAME-NUMBER/personalised-edges.csv     the site's own refit of it
OUT/NAME-NUMBER/outcome.json               how the run ended for this site
"""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbnsl.console.wording import counted_edges
from fedbnsl.files import durable
from fedbnsl.graphs.files import read_edges
from fedbnsl.protocol.messages import RunOffer

_MOST_BYTES = 80  # a file's name has 255 in all
_UNUSUAL = re.compile(r"[^\w.-]+")


def folder_of(out: Path, offer: RunOffer) -> Path:
    """Where the results of a run lie: a folder of its number, whatever the coordinator called the run first."""
    known = [place for place in out.glob(f"*-{offer.run:016x}") if place.is_dir()]
    if known:
        return known[0]
    return out / f"{plain_name(offer.name)}-{offer.run:016x}"


def plain_name(name: str) -> str:
    """A name of the coordinator's as that of a file here."""
    plain = _UNUSUAL.sub("-", name).strip(".-")
    return plain.encode()[:_MOST_BYTES].decode(errors="ignore") or "run"


def is_kept(folder: Path) -> bool:
    """Whether a run's results are there: edges.csv is written last."""
    return (folder / "edges.csv").exists()


def learned(folder: Path) -> str:
    """How many edges between variables the kept graph has, in words."""
    graph = read_edges(folder / "edges.csv")
    return counted_edges(int(graph.dag.sum()), int(graph.undirected.sum()))


def keep_plan(folder: Path, toml: str) -> None:
    """Write plan.toml. Raises ResultError if it cannot be written."""
    durable.make_folder(folder)
    durable.write_text(folder / "plan.toml", toml)


def left_under(folder: Path) -> int | None:
    """Under which approval a run was left for good; None: it was not."""
    try:
        content: dict[str, Any] = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
        return content.get("left_under")
    except (OSError, ValueError, AttributeError):  # no outcome yet, or none that was written here
        return None


def keep_outcome(folder: Path, offer: RunOffer, outcome: str, text: str, *, left_under: int | None = None) -> None:
    """Write outcome.json; see `keep_plan`.

    The outcome is "finished", or the class of the error that ended the run here; the text is for the site alone.
    `left_under` is the approval, by the number of its entry, under which the site's operator left the run for good.
    """
    content = {
        "run": f"{offer.run:016x}",
        "name": offer.name,
        "plan": offer.plan_name,
        "plan_digest": offer.plan_digest.hex(),
        "outcome": outcome,
        "text": text,
        "left_under": left_under,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    durable.make_folder(folder)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    durable.write_text(folder / "outcome.json", text, mode=durable.OWNER_ONLY)  # an error may quote the table
