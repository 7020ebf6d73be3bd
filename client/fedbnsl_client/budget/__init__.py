"""The privacy budget of a site: what its owner allows, and what each run has spent.

`policy` holds the owner's rules. `ledger` is one file with three matters: `registrations` of tables, which also tell
what shares one budget, `approvals` of plans, and `payments`. The file itself is in `ledger_file`, `ledger_schema`,
`ledger_chain` and `ledger_lock`. `high_water_mark` notes its newest state outside the site's folder. `journal` pays for
one run, `report` prints the account.
"""
