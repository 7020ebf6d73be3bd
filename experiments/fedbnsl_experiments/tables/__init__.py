"""Tables of several sites, and how results are written as tables.

`synthetic` draws data with a known truth, `sachs` reads the published protein data, `notebook` takes data frames and
arrays, `folder` reads and writes site-1.csv, site-2.csv, ..., and `csv_rows` writes rows of results.
"""
