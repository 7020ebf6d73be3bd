"""The privacy budget of a site: what its owner allows, and what each run has spent.

`policy` holds the owner's rules. `ledger` records the spending; its parts are `ledger_file`, `ledger_schema`,
`ledger_chain` and `ledger_lock`. `registrations` tells which datasets share one budget. `high_water_mark` notes the
newest state of the ledger outside the site's folder. `journal` pays for one run, `report` prints the account.
"""
