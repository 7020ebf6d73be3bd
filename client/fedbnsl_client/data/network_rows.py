"""Rows of a site's table as a learned network has them."""

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import SchemaMismatchError
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset


def rows_for(network: FittedNetwork, table: Dataset) -> Matrix:
    """(n, d) values of the network's columns, NaN where the table has none.

    Raises SchemaMismatchError if the table's dictionary says other things of them, or it has none of them.
    """
    own, theirs = table.dictionary, network.dictionary
    differ = [name for name in network.variables if name in own and name in theirs and own[name] != theirs[name]]
    place, names = {name: k for k, name in enumerate(table.variables)}, network.columns.names
    shared = [k for k, name in enumerate(names) if name in place]
    if differ or bool(own) != bool(theirs) or not shared:
        about = f": it says other things of {first_few(map(repr, differ))}" if differ else ""
        raise SchemaMismatchError(
            f"this site's table is not described as the variables of the network are{about}",
            remedy="Put the consortium's dictionary.toml in the place of this site's; columns.toml names its columns.",
        )
    X = np.full((len(table.X), len(names)), np.nan)
    X[:, shared] = table.X[:, [place[names[k]] for k in shared]]
    return X
