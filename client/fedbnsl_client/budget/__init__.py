"""What a site's tables may lose, have lost, and to whom.

`policy` holds the owner's rules, `ledger` the account (in `ledger_file`, laid out by `ledger_schema`, chained by
`ledger_chain`, owned through `ledger_lock`), `journal` pays for one run, `report` prints it.
"""
