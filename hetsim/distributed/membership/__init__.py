"""The ranks that take part in a run, and the lost ranks."""
