"""Everything that answers questions: models of ours, of others, and baselines that do not look.

Each is a module of its own that turns questions into lines of predictions; `table` lists them.
"""
