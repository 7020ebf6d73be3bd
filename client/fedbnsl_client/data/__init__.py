"""The private table: how it is read, checked and recognised again.

`dataset` is the table that everything else works on; `csv_table` and `parquet_table` read it, `mapped_array` keeps it
in a file if it is large, `columns` and `checks` say what does not fit, `fingerprint` recognises it (by way of
`sorted_rows`).
"""
