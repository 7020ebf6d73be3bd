"""The private table: how it is read, checked and recognised again.

`dataset` is the table that everything else works on; `sources` read it, `dask_table` lets workers do so; `mapped_array`
keeps it in a file if it is large, `columns` and `checks` say what does not fit, `fingerprint` recognises it (by way of
`record_tags`); `repeats` finds copies of records; `drafts` are first descriptions of a table.
"""
