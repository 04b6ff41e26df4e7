"""CXR-QBA's scene graphs held against what people said of the same studies."""
