"""What the operators of a site may do over its page."""

from fedbnsl.web.roles import Roles

LEAVE = "leave a run"
APPROVE = "approve a plan"

# Whoever sits at the machine, or has the one token, may do all.
ROLES = Roles(("view", "approve"), {LEAVE: "approve", APPROVE: "approve"}, unnamed="approve")
