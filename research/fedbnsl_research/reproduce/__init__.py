"""The tables and figures of the paper, one module each, named as on the command line.

`study` runs a study and writes its folder; `words` holds what its page tells the reader, one TOML file a study.
`private_runs` and `private_study_plans` are shared by the private studies, `baseline_plans` and `curves` by the others.
"""
