"""Settings of a plan, replaced by dotted names: `rounds`, `privacy.clip`."""

from collections.abc import Collection, Mapping
from typing import Any, cast

from fedbnsl.console.wording import first_few
from fedbnsl.errors import PlanError, SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.plan_file import place_of
from fedbnsl.plan.plan_options import PlanChoice
from fedbnsl_client.data.dataset import Dataset


def for_sites(plan: Plan, n_sites: int, names: Collection[str] = ()) -> Plan:
    """The plan for as many sites as there are tables.

    `names`: of all sites; empty: not known yet. Raises PlanError if the plan calls variables absent at another site.
    """
    unknown = [repr(site) for site in plan.absent.root if names and site not in names]
    if unknown:
        raise PlanError(
            f"absent: no site is called {first_few(unknown)}; the sites are {first_few(names)}",
            remedy="Call the sites in [absent] as the tables are called.",
        )
    unknown = [repr(site) for site in plan.set_at if names and site not in names]
    if unknown:
        raise PlanError(
            f"interventions: no site is called {first_few(unknown)}; the sites are {first_few(names)}",
            remedy="Call the sites in [[interventions]] as the tables are called.",
        )
    quorum = plan.quorum if plan.quorum <= n_sites else 0
    return plan.with_settings(n_participants=n_sites, quorum=quorum)


def for_tables(plan: Plan, tables: Mapping[str, Dataset]) -> Plan:
    """The plan for these sites; a private one says what each lacks, since its noisy numbers cannot tell.

    Raises PlanError as `for_sites`, or if no site has two of the variables together.
    """
    plan = for_sites(plan, len(tables), tables)
    if not plan.completes_privately or plan.absent:
        return plan
    lacking = {site: [name for name in plan.in_tables if name in table.absent] for site, table in tables.items()}
    return plan.with_settings(absent={site: names for site, names in lacking.items() if names})


def refuse_another_number(choice: PlanChoice, n_sites: int) -> None:
    """Refuse `--set n_participants=N` where there are not N tables.

    Raises
    ------
    SetupError
        If N is another number.
    """
    given = choice.read()
    asked = given.settings.get("n_participants")
    if "n_participants" in given.given_by and given.given_by["n_participants"] == "--set" and asked != n_sites:
        raise SetupError(
            f"--set n_participants={asked}: there are {n_sites} tables, and every table is a site",
            remedy="Leave the setting out: the tables in --data, or --sites of generated ones, say how many there are.",
        )


def with_dotted(plan: Plan, settings: Mapping[str, Any], *, origin: str) -> Plan:
    """A plan with some settings replaced, validated as a whole.

    Parameters
    ----------
    settings
        By name; `privacy.clip` reaches into a table, and a mapping as value replaces settings within one.
    origin
        Name of the settings in error texts.

    Raises
    ------
    PlanError
        As `Plan.parse`, or if a name reaches into a setting that is not a table.
    """
    values = plan.model_dump(exclude_none=True)
    for name, value in settings.items():
        inner, leaf = place_of(name, values, origin=f"{origin}:")
        old = inner.get(leaf)
        # A table is replaced setting by setting: `privacy = {epsilon = 1}` keeps the plan's clip.
        inner[leaf] = (
            {**cast(dict[str, Any], old), **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
        )
    return Plan.parse(values, origin=origin)
