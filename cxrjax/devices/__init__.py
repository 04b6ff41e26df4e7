"""Which device holds what: the mesh, and how arrays get onto it and off it."""
