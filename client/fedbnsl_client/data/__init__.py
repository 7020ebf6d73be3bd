"""The private table: how it is read, checked and recognised again.

`dataset` is the table that everything else works on; `csv_table`, `parquet_table` and `database` (with
`postgresql_query` and `sqlite_query`) read it, `dask_table` lets workers do so; `mapped_array` keeps it
in a file if it is large, `columns` and `checks` say what does not fit, `fingerprint` recognises it (by way of
`sorted_rows`); `repeats` finds copies of records.
"""
