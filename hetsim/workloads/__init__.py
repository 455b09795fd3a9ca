"""What is trained: a workload, which is a frozen and early checked description, and the task that it loads."""
