"""What the operator of a site looks at: a page of each run with a button to leave it, and an agent's metrics.

`site_view` listens to the events of a run and keeps what its page shows, `site_page` has the addresses (`participant
join --web`, `participant agent --web`); `prometheus` says what there is to count of an agent. Nothing is shown of
another site, and of the table only what its own operator may know.
"""
