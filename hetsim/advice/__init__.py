"""`hetsim-advise`: find the best method and batch split for your cluster, by simulation."""
