"""How commands talk to a person at a terminal."""
