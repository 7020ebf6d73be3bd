"""Several runs of one coordinator: a folder of runs, its queue, and the service that plays them behind one port.

A run itself is played by `fedbnsl_server.run.coordinator`.
"""
