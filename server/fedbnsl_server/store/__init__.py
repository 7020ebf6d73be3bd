"""What the coordinator keeps on disk.

`run_folder` opens the folder of a run and continues it from `run_id`, `checkpoint` and `history`; `site_ledgers`
remembers each site's privacy ledger from run to run.
"""
