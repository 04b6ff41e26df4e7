"""What radiology text says: findings, negation, certainty, place, in English and Vietnamese."""
