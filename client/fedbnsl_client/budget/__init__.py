"""What a site's tables may lose, have lost, and to whom.

`policy` holds the owner's rules, `ledger` the account (in `ledger_file`, laid out by `ledger_schema`, chained by
`ledger_chain`, owned through `ledger_lock`), `registrations` tells which datasets share one budget, `high_water_mark`
notes outside the site's folder how far the ledger has come, `journal` pays for one run, `report` prints it.
"""
