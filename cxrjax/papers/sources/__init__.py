"""Public collections that several papers build on: OpenI, MIMIC-CXR-JPG, Chest ImaGenome."""
