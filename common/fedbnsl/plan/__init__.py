"""The plan: every public setting of a run, agreed on before any record is read.

`plan` holds the settings and their digest, `privacy_settings` the table `[privacy]`, `knowledge` required and forbidden
edges. Nothing here knows of data, of the network or of files other than the plan's own.
"""
