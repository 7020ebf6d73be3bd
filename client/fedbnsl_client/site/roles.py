"""What the operators of a site may do over its page."""

from fedbnsl.web.roles import Roles

LEAVE = "leave a run"

# Whoever sits at the machine, or has the one token, could always leave.
ROLES = Roles(("view", "approve"), {LEAVE: "approve"}, unnamed="approve")
