"""Whether two tables hold the same data, told by a short value that only the holder of a key can compute."""

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np

from fedbnsl.sparse import Matrix
from fedbnsl_client.data.sorted_rows import sorted_rows


def fingerprint(key: bytes, variables: Sequence[str], X: Matrix) -> bytes:
    """HMAC-SHA-256 of a table, the same for every order of its rows and of its columns.

    A plain hash would be a release: whoever guesses a table could check the guess. Neither the key nor this value
    leaves the site.

    Parameters
    ----------
    key
        32 random bytes.
    variables
        d distinct column names.
    X
        (n, d) finite values.

    Returns
    -------
    bytes
        32 bytes. Names, shape and every bit of the values count, except the sign of zero.

    Raises
    ------
    ValueError
        If names and array do not fit each other.
    """
    if X.ndim != 2 or X.shape[1] != len(variables) or len(set(variables)) < len(variables):
        raise ValueError(f"{len(variables)} names, {len(set(variables))} of them distinct, for an array {X.shape}")
    order = sorted(range(len(variables)), key=lambda k: variables[k])
    # The shape says how many names follow, each after its length, and how many values: no two tables run together.
    code = hmac.new(key, digestmod=hashlib.sha256)
    for size in X.shape:
        code.update(size.to_bytes(8, "little"))
    for name in (variables[k].encode() for k in order):
        code.update(len(name).to_bytes(8, "little") + name)
    for rows in sorted_rows(X, order):
        code.update(np.ascontiguousarray(rows, dtype="<f8").reshape(-1).data.cast("B"))
    return code.digest()
