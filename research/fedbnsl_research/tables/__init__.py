"""Tables that studies use: `sachs` reads the published protein data, `published` networks to draw from.

`csv_rows` writes rows of results.
"""
