"""The kinds of rounds at the coordinator, one module a kind: what to ask the sites, and what to do with their answers.

`kinds` says what such a module has. The loop that plays them is `fedbnsl_server.run.round_loop`; what both sides
know of a kind is in `fedbnsl.rounds`.
"""
