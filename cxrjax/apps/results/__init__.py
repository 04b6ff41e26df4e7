"""The results page of a benchmark."""
