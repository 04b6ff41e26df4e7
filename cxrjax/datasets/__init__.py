"""One package per dataset: its native format to records and back, and how it is constructed."""
