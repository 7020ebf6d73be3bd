"""How near a learned graph is to the truth: SHD, SID and the rest, and `fedbnsl evaluate`."""
