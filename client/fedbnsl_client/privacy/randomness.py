"""Where uniform random integers come from: the operating system, or, for experiments on public data only, a seed."""

import random
import secrets


class System:
    """The operating system's entropy: what every run on private data uses."""

    def __call__(self, n: int, /) -> int:
        """Uniform on 0, ..., n - 1."""
        return secrets.randbelow(n)

    def words(self, n: int) -> bytes:
        """Uniform numbers of 32 bits, 4 bytes each."""
        return secrets.token_bytes(4 * n)

    def unread(self, n: int) -> None:
        """Nothing: what was not used is forgotten, so that a copy of this process cannot use it again."""


class Seeded:
    """A reproducible source. It protects nothing: anyone who knows the seed can subtract the noise."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._before, self._drawn = self._random.getstate(), 0

    def __call__(self, n: int, /) -> int:
        """Uniform on 0, ..., n - 1."""
        return self._random.randrange(n)

    def words(self, n: int) -> bytes:
        """Uniform numbers of 32 bits, 4 bytes each: those that integers would be made of."""
        self._before, self._drawn = self._random.getstate(), n
        return self._random.randbytes(4 * n)

    def unread(self, n: int) -> None:
        """Give the last n of these words again, to whatever is drawn next."""
        self._random.setstate(self._before)
        self._random.getrandbits(32 * (self._drawn - n))


system = System()
seeded = Seeded
