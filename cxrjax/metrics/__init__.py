"""Metrics: pure functions on arrays and strings.

An undefined figure is NaN here and null in files, never 0: see the table in `detection`.
"""
