"""From a config to a cluster: each mistake gets one sentence that names the key, the value, and what to do."""
