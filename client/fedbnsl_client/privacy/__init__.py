"""Privacy noise: the only room of a site where it is drawn.

`randomness` is the source, `noise` the exact samplers, `private_moments` the releases of second moments. Each is
called only after the ledger has paid.
"""
