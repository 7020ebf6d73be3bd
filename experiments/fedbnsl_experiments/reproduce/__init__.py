"""The tables and figures of the paper, one file each; `study` is what they share."""
