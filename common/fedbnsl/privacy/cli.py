"""`fedbnsl privacy`: what a private run would cost, before any site joins."""

import json

import click

from fedbnsl.errors import SetupError
from fedbnsl.plan.plan_options import PlanChoice, takes_plan


@click.group()
def privacy() -> None:
    """Privacy cost of private plans. Only the plan is read."""


@privacy.command()
@takes_plan()
@click.option("--rows", type=click.IntRange(min=2), required=True, help="Rows of the site's table.")
@click.option(
    "--variables",
    "n_variables",
    type=click.IntRange(2, 65_535),
    help="Number of columns (d): of variables, with K - 1 for a nominal one of K levels.  [default: as the plan names]",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1, max=10_000),
    default=1,
    show_default=True,
    help="Also say what so many runs of the same tables cost together.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the privacy cost as JSON.")
def price(choice: PlanChoice, rows: int, n_variables: int | None, runs: int, as_json: bool) -> None:
    """Privacy cost of PLAN for one site: total zCDP, epsilon, and every noise scale.

    No noise scale can be chosen: each follows from epsilon, delta, rounds, steps and shares.
    """
    from fedbnsl.privacy.report import price_lines, price_summary

    plan = choice.load()
    if plan.privacy is not None and plan.preparation is not None and not plan.dictionary:
        plan.require_ranges(0)  # refuses: the cost depends on the dictionary
    named = len(plan.column_names)
    if n_variables and named and n_variables != named:
        raise SetupError(
            f"--variables {n_variables}: the plan names {named} variables; leave out --variables, or the plan's names"
        )
    d = n_variables or named
    if not d:
        raise SetupError("the plan names no variables; say how many there are with --variables")
    summary = price_summary(plan, n_samples=rows, n_variables=d, runs=runs)
    click.echo(json.dumps(summary) if as_json else "\n".join(price_lines(summary)))
