"""How every command takes a plan: a name or a path, and options that replace some of its settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from fedbnsl.errors import PlanError
from fedbnsl.plan.plan_file import GivenSettings, read_settings
from fedbnsl.plan.ready_files import DEFAULT_PLAN, READY_PLANS, ReadyFiles

if TYPE_CHECKING:
    from fedbnsl.plan.plan import Plan

_NAME_OR_PATH = (
    "PLAN is a name from `fedbnsl plan list` or the path of a TOML file. A ready plan is preferred to a file of that "
    "name; text with a separator or ending in .toml is a path, such as ./lean."
)


class NameOrPath(click.ParamType[str | Path]):
    """The name of a ready file, or the path of one that exists."""

    name = "name or path"

    def __init__(self, ready: ReadyFiles, *, folders: bool = False) -> None:
        self._ready = ready
        self._path = click.Path(exists=True, dir_okay=folders, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | Path:
        """A name as a string, a path as a `Path`."""
        try:
            resolved = self._ready.resolve(value)
        except PlanError as error:
            self.fail(str(error), param, ctx)
        return Path(self._path.convert(resolved, param, ctx)) if isinstance(resolved, Path) else resolved


@dataclass(frozen=True)
class PlanChoice:
    """A plan as given on the command line: a name or a path, None where it is optional, and what replaces settings."""

    plan: str | Path | None
    overrides: tuple[str, ...] = ()
    epsilon: float | None = None
    delta: float | None = None
    dictionary: Path | None = None

    @property
    def changes_settings(self) -> bool:
        """Whether an option replaces a setting."""
        return bool(self.overrides) or self.epsilon is not None or self.delta is not None or self.dictionary is not None

    def otherwise(self, ready: str) -> Self:
        """The same choice, of this ready plan if none was given."""
        return replace(self, plan=self.plan or ready)

    def read(self) -> GivenSettings:
        """The settings of the plan, or of `DEFAULT_PLAN` if none was given; see `read_settings`."""
        return read_settings(self.plan or DEFAULT_PLAN, self.overrides, epsilon=self.epsilon, delta=self.delta)

    def load(self) -> Plan:
        """The plan of these settings; see `Plan.load`."""
        from fedbnsl.plan.plan import Plan

        given = self.read()
        plan = Plan.parse(given.settings, origin=given.origin)
        if self.dictionary is None:
            return plan
        from fedbnsl.plan.dictionary import Dictionary

        return plan.with_dictionary(Dictionary.load(self.dictionary), origin=str(self.dictionary))


def takes_plan(
    *, or_folder: bool = False, as_option: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a plan, --set, --epsilon, --delta and --dictionary; its function gets a `PlanChoice` as `choice`.

    The argument may name a run folder instead with `or_folder`. `as_option` is the help of an option --plan, which
    then replaces the argument.
    """
    kind = NameOrPath(READY_PLANS, folders=or_folder)
    if as_option is None:
        parameter = click.argument("plan", metavar="PLAN|RUN" if or_folder else "PLAN", type=kind)
    else:
        parameter = click.option("--plan", metavar="PLAN", type=kind, help=as_option)
    options = (
        parameter,
        click.option(
            "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replace a setting of the plan; repeatable."
        ),
        click.option("--epsilon", type=float, help="For a private plan: budget of the run, for each site."),
        click.option(
            "--delta", type=float, help="For a private plan: delta of that budget; 0: 1 / rows^2 at each site."
        ),
        click.option(
            "--dictionary",
            type=click.Path(dir_okay=False, path_type=Path),
            help="TOML file that says what each variable is (kind, unit, range, levels); it becomes part of the plan.",
        ),
    )

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_choice(*args: object, **given: Any) -> None:
            choice = PlanChoice(**{one.name: given.pop(one.name) for one in fields(PlanChoice)})
            command(*args, choice=choice, **given)

        with_choice.__doc__ = f"{inspect.getdoc(command)}\n\n{_NAME_OR_PATH}"
        for option in reversed(options):
            with_choice = option(with_choice)
        return with_choice

    return decorated
