"""Learned graphs: how a DAG is extracted from weights, and the files that it is written to.

`graph` thresholds and breaks cycles, `family_moments` says which second moments a search among neighbours needs,
`formats` writes one graph as CSV, GraphML, DOT, dagitty or JSON, `csv_names` keeps spreadsheets from running a name,
`files` writes all of them to a folder.
"""
