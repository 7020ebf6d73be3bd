"""Tables of several sites.

`synthetic` draws data with a known truth, `hospital` draws them as hospitals have them (by the law in `hospital_law`),
`notebook` takes data frames and arrays, `folder` reads and writes site-1.csv,
site-2.csv, ..., `draft` drafts a data dictionary (from the `column_cells`, the `guess` of each column, their
`column_functions` and `column_sums`), `column_map_draft` a column map, `toml_entry` writes entries of both.
"""
