"""The roles of a side, and what each may do: one table, which the check before every change looks at."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_LOOK = "look at everything that is shown"


@dataclass(frozen=True)
class Roles:
    """The roles of a side, and the least one that each action needs."""

    names: tuple[str, ...]  # the least first, which may look: each may do what those before it may
    # An action, such as "stop a run", and the least role.
    needs: Mapping[str, str] = field(default_factory=dict[str, str])
    # Of whoever shows the one token that has no name, or sits at this machine where no token is asked for.
    unnamed: str = "view"
    by_token: frozenset[str] = frozenset()  # actions that take a token, also at this machine

    def allow(self, role: str, action: str) -> bool:
        """Whether a role may do this. Raises KeyError if the action is not in the table."""
        return self.names.index(role) >= self.names.index(self.needs[action])

    def in_words(self) -> str:
        """A line for each role: what it may do that those before it may not."""
        width = max(map(len, self.names))
        lines = [
            f"{role:{width}}  {'; '.join([_LOOK] * (role == self.names[0]) + self._added_by(role))}"
            for role in self.names
        ]
        return "\n".join(lines)

    def _added_by(self, role: str) -> list[str]:
        return [action for action, least in self.needs.items() if least == role]


VIEWERS = Roles(("view",))
"""Of a port where nothing can be changed."""
