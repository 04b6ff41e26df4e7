"""GEMeX (arXiv 2411.16778): grounded, explained questions out of reports and regions."""
