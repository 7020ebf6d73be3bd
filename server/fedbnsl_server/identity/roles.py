"""What the operators of a coordinator may do over its page."""

from fedbnsl.web.roles import Roles

START, RESUME, PAUSE, STOP, EJECT = "start a run", "resume a run", "pause a run", "stop a run", "eject a site"

ROLES = Roles(
    ("view", "run", "administer"),
    {START: "run", RESUME: "run", PAUSE: "run", STOP: "administer", EJECT: "administer"},
)
"""The sites of a stopped run were told so, and one that was ejected is out for good; a pause costs nobody anything."""
