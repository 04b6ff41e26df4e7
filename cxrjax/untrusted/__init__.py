"""The border: whatever comes from outside passes here, and has a budget.

What breaks it is a `ForeignError`, one line without the file's name; the caller names the file and
the line (`cxrjax.files.reading`) or sets the item aside and counts it. `SECURITY.md` lists what is
promised of each format; `tests/test_architecture.py` forbids the bare parsers elsewhere.
"""
