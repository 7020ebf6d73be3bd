"""Learned graphs: how a DAG is extracted from weights, and the files that it is written to.

`graph` thresholds and breaks cycles, `cpdag` says which directions all DAGs of a class share (by the rules in `meek`),
`class_members` which DAGs these are, `family_moments` which second moments a search among neighbours needs, `formats`
writes one graph as CSV, GraphML, DOT, dagitty or JSON, `csv_names` keeps spreadsheets from running a name, `files`
writes all of them to a folder.
"""
