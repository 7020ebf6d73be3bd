"""Whole sentences of the page on the graph: what was learned, and what an estimate in it is."""

from collections import Counter
from collections.abc import Sequence

from fedbnsl.console.wording import counted
from fedbnsl.protocol.messages import Yields
from fedbnsl.rounds.kinds import KINDS
from fedbnsl_workbench.report.learned import EdgeRow
from fedbnsl_workbench.report.prepared import intercept_words
from fedbnsl_workbench.report.run_files import ReportedRun, Truth


def learned_sentence(run: ReportedRun, learned: Sequence[EdgeRow], missing: Sequence[EdgeRow]) -> str:
    """One sentence for the head, and with a truth another."""
    d = len(run.variables)
    if not learned:
        if run.searched and not run.plan.threshold:
            return f"The search kept no edge among {d} variables."
        return f"No edge among {d} variables exceeded the threshold {run.plan.threshold:g}."
    largest, undirected = learned[0], sum(not edge.directed for edge in learned)
    weight = _in_short(largest.estimate or 0.0)
    if largest.standardised is not None:
        weight = f"{weight}, without units {_in_short(largest.standardised)}"
    kind = f"edge{'s' if len(learned) > 1 else ''} among {d} variables"
    words = f"{len(learned)} directed {kind}"
    if undirected:
        words = f"{len(learned)} {kind}, {len(learned) - undirected} of them directed"
    words += f"; the largest weight is {largest.source} {largest.mark} {largest.target} ({weight})"
    if run.truth is None:
        return f"{words}."
    return f"{words}. {_against_truth(run.truth, learned, missing)}"


def _in_short(weight: float) -> str:
    """Two decimals where they say something, otherwise three digits."""
    return f"{weight:+.2f}" if 0.1 <= abs(weight) < 1e4 or not weight else f"{weight:+.3g}"


def _against_truth(truth: Truth, learned: Sequence[EdgeRow], missing: Sequence[EdgeRow]) -> str:
    among = f" among the {len(truth.reference.common)} variables in common" if truth.reference.only_reference else ""
    counts = Counter(edge.verdict for edge in learned)
    wrong = {kind: counts[kind] for kind in ("reversed", "open", "extra")} | {"missing": len(missing)}
    if (truth.marks != truth.edges).any():
        n_true, what = int((truth.marks | truth.marks.T).sum()) // 2, "the truth's equivalence class"
    else:
        n_true, what = int(truth.reference.edges.sum()), "the truth"
    correct = counts["correct"]
    opened = f"{wrong['open']} undirected in one of the two, " if wrong["open"] else ""
    # The scores are of the class, which directs undecided edges.
    shd = "" if any(edge.directed_by == "undecided" for edge in learned) else f" (SHD {sum(wrong.values())})"
    return (
        f"Of the {counted(n_true, 'edge')} of {what}{among}, {correct} {'was' if correct == 1 else 'were'} found; "
        f"{wrong['reversed']} reversed, {opened}{wrong['missing']} missing, {wrong['extra']} extra{shd}."
    )


def n_refits(run: ReportedRun) -> int:
    """How many rounds refitted the weights."""
    return sum(KINDS[entry["kind"]].YIELDS is Yields.WEIGHTS for entry in run.rounds)


def estimate_sentence(run: ReportedRun) -> str:
    """What an estimate is."""
    plan, refits = run.plan, n_refits(run)
    intercept, scaled = intercept_words(run), " without units" * (run.divided_by is not None)
    if run.searched:
        moments = "each site's moments, averaged over the sites"
        if plan.privacy:
            moments = "the sites' noisy moments, pooled"
        elif plan.weighs_rows:
            moments = "the sites' moments, pooled over their rows"
        cut = (
            f"Edges whose coefficient{scaled} was at most {plan.threshold:g} (threshold) were dropped from it, and the "
            "others estimated again without them."
            if run.result["state"] == "finished" or not plan.privacy
            else f"The run ended before its last search: edges whose coefficient{scaled} is at most "
            f"{plan.threshold:g} (threshold) were cut, and the others not estimated again."
        )
        graph = "the graph that was searched"
        if not plan.threshold:
            cut = "The search alone decided which edges there are: no threshold cut any."
        if not (run.marks == run.directed).all():
            graph = "a DAG of the class that was searched"
            cut += (
                " The estimate of an undirected edge is that of source \u2192 target in this DAG; another DAG of "
                "the class may have another."
            )
        return f"An estimate is a least-squares coefficient, {intercept}, on {graph}, from {moments}. {cut}"
    if not refits:
        shrunk = ", shrunk towards zero by the L1 penalty" if plan.l1_weight else ""
        return f"An estimate is the raw consensus weight{shrunk}: no refit followed."
    graph = f"of all raw weights{scaled} above {plan.refit_threshold:g} (refit_threshold)"
    if refits > 1:
        graph = f"that the refit before left, at first that {graph}"
    average = "average, by rows," if plan.weighs_rows else "average"
    return (
        f"An estimate is the {average} of the sites' least-squares coefficients, {intercept}, on the graph "
        f"{graph}. Edges whose coefficient{scaled} is at most {plan.threshold:g} (threshold) were cut after that, and "
        "the others not estimated again: an estimate is also adjusted for parents that were cut."
    )
