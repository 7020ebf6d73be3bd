"""A page that lives with a run: what both sides need to show one to a browser, and to nobody else.

`publisher` holds what a page shows, published from any thread; `stream` sends it to browsers as server-sent events.
`access` decides who may ask for what, and under which content security policy: `roles` has the table of roles and
actions, `operators` those who have tokens, `operators_cli` their commands. `port` listens in its own thread, over the
connections that `connections` allows; `metrics_port` answers `/metrics` by the same server. `exposure` has the rule for
loopback, TLS and tokens, `options` the options of the commands. What a page is about is said by the rooms of the two
sides.

Starlette and uvicorn are loaded only where a page is asked for. Nothing here waits for a viewer: a viewer that is slow
or hangs is cut off, and a run never notices.
"""
