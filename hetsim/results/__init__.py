"""The results of runs: folder, summary and figures of each, comparisons and tables of several."""
