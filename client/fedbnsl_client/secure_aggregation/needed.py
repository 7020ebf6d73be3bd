"""Whether a plan with secure aggregation has enough confirmed peers, before its run."""

from pathlib import Path

from fedbnsl.plan.plan import Plan
from fedbnsl_client.secure_aggregation import peers


def peers_lacking(plan: Plan, folder: Path, site: str) -> tuple[str, bool]:
    """How many confirmed peers a plan needs at a site and how many there are, for people; and whether some lack.

    Empty for a plan without secure aggregation. Of a plan that does not name its sites, all confirmed ones count.
    """
    if not plan.secure_aggregation:
        return "", False
    known = set(peers.confirmed(folder)) - {site}
    among = sorted(set(plan.sites) - {site})
    there = known & set(among) if among else known
    least = plan.n_honest - 1
    text = f"secure aggregation needs {least} confirmed peers at this site; {len(there)} are confirmed"
    if len(there) >= least:
        return text, False
    others = sorted(set(among) - known)
    return f"{text}: a run is refused until more are" + (f" ({', '.join(others)} are not)" if others else ""), True


def peer_lines(plan: Plan, folder: Path, site: str) -> tuple[str, ...]:
    """As `participant approve` shows it."""
    text, lacking = peers_lacking(plan, folder, site)
    if not text:
        return ()
    return (f"{text}: fedbnsl participant peers {folder}" if lacking else text,)
