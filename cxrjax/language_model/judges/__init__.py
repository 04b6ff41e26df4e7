"""Judges of free text: a language model, its verdicts replayed, or rules in its place.

judge           the questions to a judge, and its verdicts
asked           asks one over HTTP, keeps its verdicts, replays them without a network
surrogate       rules: no model, no network, never called by a judge's metric's name
flags           chooses a judge from a command line

`bench/judge_agreement.py` compares two judges, or a judge and people.
"""
