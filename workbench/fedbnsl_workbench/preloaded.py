"""Load what a coordinator and a site need; what one of them alone needs after its start, it loads meanwhile.

Loading takes a minute where kernels are compiled: it ends with the process that asked for it. Forks outlive that one.
"""

import ctypes
import gc
import signal
from importlib import import_module
from typing import Any

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)

ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)

cli: Any = import_module("fedbnsl.cli")
cli.before_loading()
for module in ("fedbnsl_server.cli", "fedbnsl_server.run.serve", "fedbnsl_client.cli", "fedbnsl_client.site.identity"):
    import_module(module)
cli.fedbnsl.list_commands(import_module("click").Context(cli.fedbnsl))  # reads the metadata of every distribution
import_module("fedbnsl_client.solvers.local_solver").warm_up()
gc.freeze()  # what is loaded is no garbage: collections in the forks need not look at it, nor copy it
