"""Load what a coordinator and a site need; what one of them alone needs after its start, it loads meanwhile."""

import gc
from importlib import import_module

import click

from fedbnsl.cli import before_loading, fedbnsl

before_loading()
for module in ("fedbnsl_server.cli", "fedbnsl_server.run.serve", "fedbnsl_client.cli", "fedbnsl_client.site.identity"):
    import_module(module)
fedbnsl.list_commands(click.Context(fedbnsl))  # reads the metadata of every distribution
import_module("fedbnsl_client.solvers.local_solver").warm_up()
gc.freeze()  # what is loaded is no garbage: collections in the forks need not look at it, nor copy it
