"""Making GEMeX's questions out of reports and regions."""
