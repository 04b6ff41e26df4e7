"""Phantom chest X-ray studies in the native layouts of MIMIC-CXR-JPG, Chest ImaGenome and CXAS.

No part comes from a patient: images, anatomy and reports follow from (seed, number).
data/phantom_studies/README.md lists every file and key.
"""
