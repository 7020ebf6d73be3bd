"""The coordinator's page (`coordinator serve --web`): what a run is about, while it goes on.

It shows what the coordinator knows from its own messages and also writes to the run folder. What operators ask of the
runs of a queue, by its buttons or by programs, is in `run_requests`; nothing else changes anything.
"""
