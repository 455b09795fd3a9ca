"""What is trained: a frozen description that is checked early, and the task that it loads."""
