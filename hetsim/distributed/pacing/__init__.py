"""Make real processes take the times that a cluster describes."""
