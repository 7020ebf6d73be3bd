"""The sites of a run, as the coordinator sees them.

`roster` says who takes part, `membership_log` writes down who joined, left or was ejected, `ejection` says whether a
site can be, `mailbox` hands out tasks and collects the answers of a round.
"""
