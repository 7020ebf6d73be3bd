"""Where a table lies: `csv_table`, `parquet_table` and `database` (with `postgresql_query` and `sqlite_query`).

`source` is the interface that they share.
"""
