"""Tasks: the mathematics of a workload on one flat vector."""
