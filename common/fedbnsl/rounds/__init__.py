"""The kinds of rounds, as both sides know them, one module for each.

A kind's module has the public content of its task (`Task`) and of its answer (`Answer`), their wire form, how many
rounds of the kind a plan has (`n_rounds`), and their place among the others (`PLACE`). Its name is the name of its
field in the protobuf messages `Task` and `Update`, and of the modules of its two sides: `fedbnsl_server.rounds` (what
to ask, what to do with the answers) and `fedbnsl_client.rounds` (how a site answers). `kinds` finds them all: a new
kind is three modules and its fields in the proto. Nothing else names a kind: others ask for what a kind says of itself.
"""
