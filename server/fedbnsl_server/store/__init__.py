"""What the coordinator keeps on disk.

`run_folder` opens the folder of a run, `run_id` and `checkpoint` are what it continues from, `history` reads how far
it had come, `results` writes what people read, `site_ledgers` remembers each site's privacy ledger from run to run.
`kept_checkpoints` are earlier ones, to which a run can be set back; `orders` are given to a run through its folder.
Of the results, `round_entry` is what is said of a round, `learned_graph` the graph, `privacy_loss` and `warnings` what
they are named for, `manifest` where all of it comes from. `result_file` reads a result again, `learned_network` its
network for effects. `command` keeps the commands that repeat a run, `shortage` tells which errors may pass.
"""
