"""The certificates of a federation, and the bundle that brings a site its certificate.

`certificates` makes and reads X.509 certificates with the site's name in them, `passphrase` knows what opens a key,
`bundle` is the file that carries a site's certificate from the coordinator to the site.
"""
