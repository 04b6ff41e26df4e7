"""ViX-Ray (arXiv 2603.15513): 5,400 chest radiographs with reports in Vietnamese."""
