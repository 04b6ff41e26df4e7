"""Decoding: the answer grammar, the generation loop, and predictions from it."""
