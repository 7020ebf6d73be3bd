"""A site's own folder, and what it checks before it takes part.

`folder` makes and reads the folder. `admission` brings a table to a run. `identity` holds key and certificate.
`doctor` has the checks of `participant check`. `identity_cli` has the commands `request`, `enrol`, `check` and `leave`.
"""
