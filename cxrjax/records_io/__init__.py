"""Records on disk: reading, checking, dividing and writing them, whatever data set they are of."""
