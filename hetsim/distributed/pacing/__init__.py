"""How real processes are made to take the times that a cluster describes."""
