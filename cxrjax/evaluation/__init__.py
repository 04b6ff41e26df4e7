"""The protocol of a benchmark: predictions in, figures with intervals and tables out."""
