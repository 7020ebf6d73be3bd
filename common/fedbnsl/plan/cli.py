"""`fedbnsl plan`: which plans are ready to use, and what the settings of a plan are."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from fedbnsl.plan.plan_options import PlanChoice, takes_plan
from fedbnsl.plan.ready_files import READY_PLANS

if TYPE_CHECKING:
    from fedbnsl.plan.plan_table import ShownSetting

# Width of a table that does not go to a terminal: enough for whole sentences.
_FILE_WIDTH = 160


@click.group()
def plan() -> None:
    """List ready plans and show the settings of a plan. Only the plan is read."""


@plan.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_command(as_json: bool) -> None:
    """The ready plans: name, whether it has differential privacy, and what it is for."""
    from fedbnsl.plan.plan import Plan

    plans = [
        {"name": name, "private": Plan.load(name).privacy is not None, "for": READY_PLANS.about(name)}
        for name in READY_PLANS.names()
    ]
    if as_json:
        click.echo(json.dumps(plans))
        return
    _print_table(
        ["name", "private", "for"],
        [(str(shown["name"]), "yes" if shown["private"] else "no", str(shown["for"])) for shown in plans],
    )


@plan.command("show")
@takes_plan()
@click.option("--all", "every", is_flag=True, help="Every setting, not only what differs from its default.")
@click.option("--json", "as_json", is_flag=True, help="Print the settings as JSON.")
def show_command(choice: PlanChoice, every: bool, as_json: bool) -> None:
    """The settings of PLAN that differ from the defaults, and where each comes from: the plan or an option."""
    from fedbnsl.plan.plan_table import shown_settings

    loaded = choice.load()
    given_by = choice.read().given_by
    if choice.dictionary is not None:
        names = [f"dictionary.{name}.{key}" for name, entry in loaded.dictionary.root.items() for key in vars(entry)]
        given_by |= dict.fromkeys(names, "--dictionary")
    settings = [setting for setting in shown_settings(loaded, given_by) if every or setting.differs]
    digest, is_private = loaded.digest().hex(), loaded.privacy is not None
    if as_json:
        keys = ("value", "default", "unit", "from", "meaning")
        table = {name: dict(zip(keys, rest, strict=True)) for name, *rest in settings}
        click.echo(json.dumps({"name": loaded.name, "digest": digest, "private": is_private, "settings": table}))
        return
    click.echo(f"plan {loaded.name}, {'private' if is_private else 'not private'}; digest {digest}")
    for line in loaded.preparation_lines():
        click.echo(line)
    _print_table(["setting", "value", "default", "unit", "from", "meaning"], [_row(setting) for setting in settings])
    if not every:
        click.echo("all other settings have their defaults; --all shows them, too")


def _row(setting: ShownSetting) -> tuple[str, ...]:
    default = "required" if setting.default is None else json.dumps(setting.default)
    return setting.name, json.dumps(setting.value, ensure_ascii=False), default, setting.unit, *setting[4:]


def _print_table(columns: list[str], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else _FILE_WIDTH).print(table)
