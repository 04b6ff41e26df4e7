"""Review by people: the sample, the sheet that readers fill in, and the consensus afterwards."""
