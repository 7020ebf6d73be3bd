"""The coordinator's side of enrolment: the federation's authority, and which sites it has signed for.

`authority` holds the keys, `enrolment` the federation's folder, `enrolment_table` the sites, `cli` the commands `init`,
`approve`, `revoke`, `renew`, `enrolled`.
"""
