"""A port of this machine where nobody listens, and that no connection gets by chance either.

A coordinator that a test starts again needs the port that it had. One of the system's own choice may meanwhile have
become the local end of any connection of another test.
"""

import random
import socket

_FIRST, _LAST = 20_000, 32_000  # Linux gives connections ports from 32768 on


def free_port() -> int:
    draw = random.SystemRandom()  # seeded generators of several workers would agree
    while True:
        port = draw.randrange(_FIRST, _LAST)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
