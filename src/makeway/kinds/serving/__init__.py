"""How each kind is served: names, versions, schema, defaults, admission, validation, columns.

Pure functions over JSON objects; nothing here knows HTTP, SQLite or who asks. `registry.build()`
gives the table of kinds; the embedded API looks everything up there.
"""
