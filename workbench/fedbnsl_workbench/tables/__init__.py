"""Tables of several sites.

`synthetic` draws data with a known truth, `hospital` draws them as hospitals have them (by the law in `hospital_law`),
`folder` reads and writes site-1.csv, site-2.csv, ...
"""
