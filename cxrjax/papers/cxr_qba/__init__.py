"""CXR-QBA (MIMIC-Ext-CXR-QBA): scene graphs from reports, questions from scene graphs."""
