"""Variables that were set at a site, such as the dose in an arm of a trial: known, not inferred.

    [[interventions]]
    site = "site-3"
    variables = ["dose"]

What such a variable follows from there is the experimenter's doing, and says nothing of what it follows from elsewhere.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fedbnsl.console.wording import first_few
from fedbnsl.errors import PlanError
from fedbnsl.plan.knowledge import VariableName
from fedbnsl.protocol.messages import SITE_NAME_RULE, is_site_name


class Intervention(BaseModel):
    """What was set at one site."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    site: str = Field(description="the site")
    variables: Annotated[tuple[VariableName, ...], Field(min_length=1)] = Field(
        description="variables that were set there"
    )


def faults(
    interventions: Sequence[Intervention], n_sites: int, sites: Sequence[str], variables: Sequence[str]
) -> Iterator[str]:
    """What they must be and are not, in a run of so many sites; empty `sites` or `variables` are not known."""
    named = [one.site for one in interventions]
    if not all(map(is_site_name, named)):
        yield f"at sites: {SITE_NAME_RULE}"
    if len(set(named)) < len(named):
        yield "one table [[interventions]] a site, with all variables that were set there"
    if sites and (unknown := [site for site in named if site not in sites]):
        yield f"at sites in `sites`, which has no {first_few(map(repr, unknown))}"
    if len(named) > n_sites:
        yield f"at no more than n_participants = {n_sites} sites"
    told = [name for one in interventions for name in one.variables]
    if variables and (unknown := [name for name in told if name not in variables]):
        yield f"of variables of the run, which has no {first_few(map(repr, unknown))}"


def refuse_other_names(
    interventions: Sequence[Intervention], sites: Collection[str], variables: Collection[str]
) -> None:
    """Raise PlanError for interventions at sites, or in variables, that a run does not have."""
    for one in interventions:
        if one.site not in sites:
            raise PlanError(
                f"interventions: no site of the run is called {one.site!r}; the sites are {first_few(sites)}",
                remedy="Call the sites in [[interventions]] as they call themselves.",
            )
        if unknown := [name for name in one.variables if name not in variables]:
            raise PlanError(
                f"interventions: the run has no variable {first_few(map(repr, unknown))}, which {one.site} has set",
                remedy="Name variables in [[interventions]] as the tables do.",
            )
