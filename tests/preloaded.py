"""Imported once by the process that the others are forked from: what takes seconds is then there in each of them."""

import fedbnsl_workbench.preloaded  # noqa: F401
from fedbnsl.plan.plan import Plan
from fedbnsl_server.run.coordinator import warm_up

warm_up(Plan.load("private"))  # all that any plan needs
