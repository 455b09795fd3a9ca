"""Compare two sides of finished runs. Each side is a run or its repeats. `hetsim-compare` prints, writes and draws the result."""
