"""The work of one rank during a run."""
