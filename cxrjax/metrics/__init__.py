"""Metrics: pure functions on arrays and strings.

An undefined figure is NaN here and null in files, never 0; docs/protocols.md ("Empty sides") has
what figures are where a side is empty. Figures over many images are sums first and quotients last,
so that the table is of all images together; V-score is each answer's own, and its 1 of two empty
sides is flagged (`both_empty`).
"""
