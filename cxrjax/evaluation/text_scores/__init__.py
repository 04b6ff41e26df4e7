"""Scores of free text against free text: RadFact, RadEval, BERTScore, and errors of assertions."""
