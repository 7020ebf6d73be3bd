"""Covariances of all pairs of columns to protobuf and back."""

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.protocol.matrix_codec import finite
from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl.wire import federation_pb2 as federation


def upper(S: Matrix) -> Matrix:
    """(d (d + 1) / 2,) entries of a symmetric (d, d) matrix, i <= j row by row."""
    return np.asarray(S[np.triu_indices(len(S))])


def symmetric_of(values: Matrix | Index, d: int) -> Matrix:
    """(d, d) symmetric matrix of such entries."""
    S = np.zeros((d, d))
    S[np.triu_indices(d)] = values
    return S + np.triu(S, k=1).T


def encode_covariances(told: Covariances | None) -> federation.Covariances | None:
    """Wire form; None for None."""
    return None if told is None else federation.Covariances(covariance=upper(told.S).tolist(), mean=told.means.tolist())


def decode_covariances(wire: federation.Covariances, n_variables: int) -> Covariances | None:
    """None for a message without an entry; a variance is at least 0, and 0 only of a column apart from all others."""
    values, means = finite(wire.covariance), finite(wire.mean)
    if not values.size and not means.size:
        return None
    if values.size != n_variables * (n_variables + 1) // 2 or means.size not in (0, n_variables):
        raise MalformedMessageError(f"{values.size} covariances and {means.size} means of {n_variables} columns")
    S = symmetric_of(values, n_variables)
    without = S.diagonal() == 0.0
    if (S.diagonal() < 0.0).any() or S[without].any():
        raise MalformedMessageError("a variance below 0, or a covariance of a column without a variance")
    return Covariances(S, means)
