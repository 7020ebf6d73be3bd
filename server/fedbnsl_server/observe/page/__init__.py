"""The coordinator's page (`coordinator serve --web`): what a run is about, while it goes on.

The page is read-only. It shows what the coordinator knows from its own messages and also writes to the run folder.
"""
