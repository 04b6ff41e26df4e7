"""Making CXR-QBA's scene graphs out of reports, and questions out of scene graphs."""
