"""`hetsim-advise`: which method and which split of the batch on one's own cluster, by simulation."""
