"""Rendered phantoms, and simulated lesions in real radiographs."""
