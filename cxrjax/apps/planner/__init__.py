"""Plans what a run needs of a slice, without the slice: from the compiler or by a formula."""
