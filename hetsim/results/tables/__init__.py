"""Tables of many runs: targets, means and intervals over seeds, gains over a baseline, files and a picture."""
