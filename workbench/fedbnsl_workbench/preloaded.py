"""Load what a coordinator and a site need; what one of them alone needs after its start, it loads meanwhile."""

import gc

import click

from fedbnsl.cli import before_loading, fedbnsl

before_loading()

from fedbnsl_client import cli  # noqa: E402, F401
from fedbnsl_client.site import identity  # noqa: E402, F401
from fedbnsl_client.solvers.local_solver import warm_up  # noqa: E402
from fedbnsl_server import cli as _server_cli  # noqa: E402, F401
from fedbnsl_server.run import serve  # noqa: E402, F401

fedbnsl.list_commands(click.Context(fedbnsl))  # reads the metadata of every distribution
warm_up()
gc.freeze()  # what is loaded is no garbage: collections in the forks need not look at it, nor copy it
