"""Several runs of one coordinator: a folder of runs, its queue, and the service that plays them behind one port.

`queue` keeps what the operator wants of each run, in files; `service` does it, on one event loop; `cli` holds
`coordinator runs`. A run itself is played by `fedbnsl_server.run.coordinator`.
"""
