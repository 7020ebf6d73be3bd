"""Who is who on the network: the certificates of a federation and the bundle that a site is given.

`certificates` makes and reads X.509 certificates with the site's name in them, `bundle` is the file that carries a
site's certificate from the coordinator to the site.
"""
