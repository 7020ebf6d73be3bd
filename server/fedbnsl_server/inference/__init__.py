"""How sure a learned graph is: errors, bootstrap, agreement of sites, effects."""
