"""Tables of many runs: what is compared, means and intervals over seeds, gains over a baseline, the files and the picture."""
