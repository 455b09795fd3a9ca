"""From a config to a cluster; for each mistake a ValueError of one sentence with the key, the value, and what to do."""
