"""The agent of a site: it stays up, and takes part in the runs that its operator has approved.

`agent` asks the coordinator which runs there are and decides; `part` is one run, in a thread with a ledger of its own;
`results` keeps what runs have found; `cli` holds `participant agent` and `participant runs`.
"""
