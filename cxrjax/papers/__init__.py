"""One folder a paper: its native files, how its questions are made, and how answers are scored."""
