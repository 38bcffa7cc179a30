"""Whether the clusters are fit for LR: facts are read, then judged by pure code."""
