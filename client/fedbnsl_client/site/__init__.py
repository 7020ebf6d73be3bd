"""A site's own folder, and what it checks before it takes part.

`folder` makes and reads it, `admission` decides with which table a run is joined, `identity` holds key and certificate,
`doctor` is `participant check`, `identity_cli` the commands `request` and `enrol`.
"""
