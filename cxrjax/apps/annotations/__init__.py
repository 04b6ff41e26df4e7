"""Boxes that people drew with any tool: one small reader a format, one table, records out of it."""
