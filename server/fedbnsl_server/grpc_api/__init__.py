"""The coordinator's port: gRPC calls in, gRPC answers out.

`server` binds and serves, `connections` limits who may connect how often, `incoming` checks the sender of every call
(`authentication`) and its size before it is read, `servicer` translates between messages and the run, `health`
answers health checks.
"""
