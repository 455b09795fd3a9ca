"""Links, and transfers that share them max-min fairly."""
