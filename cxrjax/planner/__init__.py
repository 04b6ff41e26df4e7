"""What a run needs of a slice, found out without it: the compiler's word and a model's estimate."""
