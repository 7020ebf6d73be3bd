"""Which variables some sites do not have, as the plan of a consortium says it. It is public, and no cell decides it.

    [absent]
    lakeside = ["crp"]
    hilltop = ["bmi", "crp"]

Sites that are not named have every variable. Without it, each site's `columns.toml` alone says what it lacks.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from pydantic import Field, RootModel
from pydantic.fields import FieldInfo

from fedbnsl.console.wording import first_few
from fedbnsl.plan.knowledge import VariableName
from fedbnsl.protocol.messages import SITE_NAME_RULE, is_site_name

_A_SITE = FieldInfo(default=(), description="variables that this site does not have; the others have it all")


class Absent(RootModel[dict[str, tuple[VariableName, ...]]]):
    """By site, the variables that it does not have; empty: the plan does not say.

    Examples
    --------
    >>> absent = Absent({"lakeside": ("crp",), "hilltop": ("bmi", "crp")})
    >>> absent.by_variable()
    {'crp': ['lakeside', 'hilltop'], 'bmi': ['hilltop']}
    """

    model_config = {"frozen": True}

    root: dict[str, tuple[VariableName, ...]] = Field(default_factory=dict[str, tuple[VariableName, ...]])

    def __bool__(self) -> bool:
        return bool(self.root)

    def __hash__(self) -> int:
        return hash(tuple(self.root.items()))

    @property
    def fields(self) -> dict[str, FieldInfo]:
        """Its settings in a plan's file: one a site."""
        return dict.fromkeys(self.root, _A_SITE)

    def of(self, site: str) -> tuple[str, ...]:
        """What a site does not have."""
        return self.root.get(site, ())

    def by_variable(self) -> dict[str, list[str]]:
        """The sites that lack a variable, for each that some do."""
        found: dict[str, list[str]] = {}
        for site, names in self.root.items():
            for name in names:
                found.setdefault(name, []).append(site)
        return found

    def never_together(self, n_sites: int) -> list[tuple[str, str]]:
        """Pairs of variables that no site has both of, in a run of so many sites."""
        if len(self.root) < n_sites:
            return []  # a site that is not named has all
        lacking = {name: set(sites) for name, sites in self.by_variable().items()}
        return [(a, b) for a, b in combinations(lacking, 2) if len(lacking[a] | lacking[b]) == n_sites]

    def faults(self, n_sites: int, sites: Sequence[str], variables: Sequence[str]) -> Iterator[str]:
        """What it must be and is not, in a run of so many sites; empty `sites` or `variables` are not known."""
        named, lacking = self.root, self.by_variable()
        if not all(map(is_site_name, named)):
            yield f"by names of sites: {SITE_NAME_RULE}"
        if sites and (unknown := [site for site in named if site not in sites]):
            yield f"of sites in `sites`, which has no {first_few(map(repr, unknown))}"
        if len(named) > n_sites:
            yield f"of at most n_participants = {n_sites} sites"
        if variables and (unknown := [name for name in lacking if name not in variables]):
            yield f"variables of the run, which has no {first_few(map(repr, unknown))}"
        if twice := [site for site, names in named.items() if len(set(names)) < len(names)]:
            yield f"names without repetition, also at {first_few(twice)}"
        if bare := [site for site, names in named.items() if variables and len(set(variables) - set(names)) < 2]:
            yield f"such that each site has two variables, also {first_few(bare)}"
        if nowhere := [name for name, without in lacking.items() if len(without) == n_sites]:
            told = first_few(map(repr, nowhere))
            yield f"such that one of n_participants = {n_sites} sites has {told}: leave out of the run what none has"
        if apart := self._apart(n_sites, variables):
            one, other = (" or ".join(map(repr, sorted(names))) for names in apart[:2])
            yield f"such that one of n_participants = {n_sites} sites has {one} and {other}: nothing would link them"

    def _apart(self, n_sites: int, variables: Sequence[str]) -> list[set[str]]:
        """Groups of variables of which no site has any two of different ones; empty: one group, or not known."""
        if len(self.root) < n_sites or not variables:
            return []
        groups: list[set[str]] = []
        for names in self.root.values():
            own = set(variables).difference(names)
            linked = [group for group in groups if group & own]
            groups = [group for group in groups if not group & own] + [own.union(*linked)]
        return groups if len(groups) > 1 else []

    def lines(self, n_sites: int) -> Iterator[str]:
        """Who lacks what, in words; nothing if the plan does not say."""
        lacking: Mapping[str, list[str]] = self.by_variable()
        for name, sites in lacking.items():
            yield f"{name!r}: {n_sites - len(sites)} of {n_sites} sites have it, and not {first_few(sites, most=20)}"
        if pairs := self.never_together(n_sites):
            told = first_few(f"{one!r} and {other!r}" for one, other in pairs)
            yield f"no site has both of {told}: the result says nothing of an edge between them"
