"""One-off commands about a model or a data set."""
