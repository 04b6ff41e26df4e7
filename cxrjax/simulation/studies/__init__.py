"""Phantom chest X-ray studies in the native layouts of MIMIC-CXR-JPG, Chest ImaGenome and CXAS.

Nothing in it comes from a patient: pictures, anatomy and reports follow from (seed, number).
data/phantom_studies/README.md lists every file and key.
"""
