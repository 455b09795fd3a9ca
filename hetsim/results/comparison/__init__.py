"""Two sides of finished runs compared, each a run or repeats of one: what `hetsim-compare` prints, writes and draws."""
