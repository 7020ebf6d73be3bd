"""What the operators of a site may do over its page."""

from fedbnsl.web.roles import Roles

LEAVE = "leave a run"
APPROVE = "approve a plan"

# Whoever has the one token may do all; of others who use this machine, nobody spends the site's budget.
ROLES = Roles(
    ("view", "approve"),
    {LEAVE: "approve", APPROVE: "approve"},
    unnamed="approve",
    by_token=frozenset({APPROVE}),
)
