"""fedbnsl: one directed acyclic graph learned from tables that never leave their sites.

The problem, over participants p = 1..P with private tables X^(p) of shape (n_p, d):

    min over B_1..B_P, W of   sum_p  1/(2 n_p) ||X^(p) - X^(p) B_p||_F^2 + lambda ||B_p||_1
    subject to                B_p = W for every p,    h(W) = tr(exp(W o W)) - d = 0

where W[i, j] is the weight of the edge i -> j. This package is the language that the coordinator (`fedbnsl_server`) and
the participants (`fedbnsl_client`) share; it imports neither.
"""

import os

__version__ = "0.1.0"

# Set before any module imports grpc, which reads these variables on import. Its fork handlers break processes that
# start others. Its log is off, because our own errors tell people what went wrong on the wire.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
