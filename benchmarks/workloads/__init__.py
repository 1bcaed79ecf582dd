"""One module per workload: the user's code, its data, its peers and its bars."""
