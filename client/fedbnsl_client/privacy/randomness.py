"""Where uniform random integers come from: the operating system, or, for experiments on public data only, a seed."""

import random
import secrets

from fedbnsl_client.privacy.noise import Randbelow

system: Randbelow = secrets.randbelow
"""The operating system's entropy: what every run on private data uses."""


def seeded(seed: str) -> Randbelow:
    """A reproducible source. It protects nothing: anyone who knows the seed can subtract the noise."""
    return random.Random(seed).randrange  # noqa: S311
