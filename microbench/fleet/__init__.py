"""A campaign: the same run on every GPU of many nodes, the store of its runs, and its outliers."""
