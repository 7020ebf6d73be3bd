"""The coordinator's page (`coordinator serve --web`): what a run is about, while it goes on.

`live_run` listens to the events of one run and keeps what its page shows, `present_graph` is the graph as it forms,
`remedies` says what stands out and what to do, `run_report` has the report made once the run is over, and `runs_page`
has the addresses of all runs of a coordinator. The page is read-only, and shows what the coordinator knows from its own
messages: what it also writes to the run folder.
"""
