"""The training: a workload, which is a frozen description that is checked early, and the task that it loads."""
