"""First drafts of what describes a table, which a person has to finish.

`dictionary_draft` makes a data dictionary from tables that anybody may see (from the `column_cells`, the `guess` of
each column, their `column_functions` and `column_sums`), `column_map_draft` a site's own column map; `toml_entry`
writes the entries of both.
"""
