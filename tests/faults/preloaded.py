"""Imported once by the process that the others are forked from: what takes seconds is then there in each of them."""

import fedbnsl_server.cli
import fedbnsl_server.run.serve  # noqa: F401
from fedbnsl_client.solvers import pgcd

pgcd.warm_up()
