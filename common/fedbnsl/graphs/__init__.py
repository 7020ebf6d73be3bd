"""Graphs as results: edges and weights, how a DAG is extracted, and the files that it is written to.

`graph` thresholds and breaks cycles, `family_moments` says which second moments a search among neighbours needs,
`formats` writes one graph as GraphML, DOT, dagitty or JSON, `files` writes all of them to a folder.
"""
