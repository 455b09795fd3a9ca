"""What one rank does during a run."""
