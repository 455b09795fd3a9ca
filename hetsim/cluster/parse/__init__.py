"""Make a cluster from a config. For each mistake, raise a ValueError with one sentence: the key, the value, and what to do."""
