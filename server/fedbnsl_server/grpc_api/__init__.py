"""The coordinator's port: gRPC calls in, gRPC answers out.

`server` binds and serves, `authentication` holds every call to its certificate, `servicer` translates between
messages and the run, `health` answers health checks, `open_files` makes room for a connection a site.
"""
