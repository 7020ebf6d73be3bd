"""The plan: every public setting of a run, agreed on before any record is read.

`settings` holds the settings with their defaults, `rules` which of them go together, `plan` a set that keeps the rules,
with its file and its digest, and `earlier_versions` how plans of earlier versions are read. `privacy_settings` holds
the table `[privacy]`, `knowledge` the required and forbidden edges. `ready/` holds the ready plans, each with what
differs from the defaults and why; `ready_files` finds them by name, `plan_file` reads a plan and replaces settings,
`plan_options` is how commands take one, and `plan_table` and `cli` show it. Nothing here reads data, other files or the
network.
"""
