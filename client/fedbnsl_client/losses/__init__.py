"""The local objective of one site and its gradients, from the table or from its second moments. Pure mathematics.

`squared` is the least-squares loss, `clipped` its per-record clipped gradient in memory, `blocked` the same from a
file.
"""
