"""Reads radiology text: findings, negation, certainty, place, in English and Vietnamese."""
