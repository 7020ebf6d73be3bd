"""Ends with 0 if the process in this pod tells a line among its metrics. Arguments: port, line, [file of the token]."""

import http.client
import pathlib
import ssl
import sys

port, line, *token = sys.argv[1:]
headers = {}
if token:
    headers = {"Authorization": "Bearer " + pathlib.Path(token[0]).read_text().strip()}
    # The pod asks itself: whom could it mistake for itself?
    asked = http.client.HTTPSConnection("127.0.0.1", int(port), timeout=10, context=ssl._create_unverified_context())
else:
    asked = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
asked.request("GET", "/metrics", headers=headers)
told = asked.getresponse().read().decode().splitlines()
sys.exit(line not in told)
