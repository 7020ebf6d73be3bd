"""What a site's ledger and policy say together: spent, left, and what one more plan would cost."""

from typing import Any

from fedbnsl import zcdp
from fedbnsl.plan import Plan
from fedbnsl.price_report import price_lines, price_summary
from fedbnsl_client.ledger import Ledger
from fedbnsl_client.ledger_chain import Entry
from fedbnsl_client.policy import DatasetPolicy, Policy


def spending(dataset: DatasetPolicy, spent_units: int) -> dict[str, Any]:
    """Spent and left of a dataset; epsilon is derived, never stored."""
    left = max(0, dataset.cap_units - spent_units)
    return {
        "dataset": dataset.id,
        "delta": dataset.max_delta,
        "max_epsilon": dataset.max_epsilon,
        "spent": {"zcdp": zcdp.zcdp_of(spent_units), "epsilon": _epsilon(spent_units, dataset)},
        # How much epsilon is left depends on what it is spent on: the difference is what is left of the promise.
        "left": {"zcdp": zcdp.zcdp_of(left), "epsilon": max(0.0, dataset.max_epsilon - _epsilon(spent_units, dataset))},
    }


def approval_lines(plan: Plan, dataset: DatasetPolicy, ledger: Ledger) -> list[str]:
    """The plan, its price for a registered dataset, and what a run would leave."""
    lines = ["the plan:", *(f"  {line}" for line in plan.to_toml().splitlines() if line and not line.startswith("#"))]
    if plan.privacy is None:
        return [*lines, "no privacy: the weights that it sends are exact functions of the table"]
    registered = ledger.registered(dataset.id)
    if registered is None:
        return [*lines, f"dataset {dataset.id} is not registered: no price can be given"]
    summary = price_summary(plan, n_samples=registered.n_samples, n_variables=len(registered.variables))
    spent, cost = ledger.spent(dataset.id), round(summary["zcdp"]["total"] * zcdp.UNITS_PER_ZCDP)
    after = spent + cost
    left = max(0.0, dataset.max_epsilon - _epsilon(after, dataset))
    lines += [f"its price for dataset {dataset.id}:", *(f"  {line}" for line in price_lines(summary))]
    lines.append(
        f"spent so far: epsilon {_epsilon(spent, dataset):.4g}; after a run: {_epsilon(after, dataset):.4g} of "
        f"{dataset.max_epsilon:g} at delta {dataset.max_delta:g}"
        + (f", {left:.4g} left" if after <= dataset.cap_units else ": MORE THAN THE POLICY ALLOWS")
    )
    return lines


def ledger_as_json(policy: Policy, ledger: Ledger) -> dict[str, Any]:
    """Spending by dataset and all entries."""
    head = ledger.head
    return {
        "ledger": head.ledger_id.hex(),
        "head": head.digest.hex(),
        "entries": [
            {"number": entry.number, "time": entry.time.isoformat(), "kind": entry.kind, **entry.content}
            for entry in ledger.entries()
        ],
        "datasets": [spending(dataset, ledger.spent(dataset.id)) for dataset in policy.datasets],
    }


def ledger_lines(policy: Policy, ledger: Ledger) -> list[str]:
    """The same for people."""
    lines: list[str] = []
    for dataset in policy.datasets:
        of = spending(dataset, ledger.spent(dataset.id))
        lines.append(
            f"dataset {dataset.id}: spent epsilon {of['spent']['epsilon']:.4g} ({of['spent']['zcdp']:.6g} zCDP), left "
            f"{of['left']['epsilon']:.4g} ({of['left']['zcdp']:.6g} zCDP) of epsilon {dataset.max_epsilon:g} at delta "
            f"{dataset.max_delta:g}"
        )
    entries = ledger.entries()
    lines.append(f"{len(entries)} entries:")
    lines += [f"  {e.number:5} {e.time:%Y-%m-%d %H:%M:%S} {e.kind:8} {_details(e)}" for e in entries]
    return lines


def _details(entry: Entry) -> str:
    what = entry.content
    if entry.kind == "register":
        return f"{what['dataset']}, {what['n_samples']} rows, {len(what['variables'])} variables"
    if entry.kind == "approve":
        return f"plan {what['name']!r}, digest {what['digest'][:16]}..."
    answer = f"{what['dataset']}, run {what['run']}, round {what['round']}"
    return f"{answer}: {zcdp.zcdp_of(what['units']):.6g} zCDP" if entry.kind == "reserve" else f"{answer}: answer kept"


def _epsilon(units: int, dataset: DatasetPolicy) -> float:
    return zcdp.epsilon_of(zcdp.zcdp_of(units), dataset.max_delta)
