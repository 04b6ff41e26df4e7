"""Commands of this data set, which `cxrjax --help` lists."""
