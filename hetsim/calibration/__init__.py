"""Make a cluster for both backends from real machines: measurements, fits, and their errors."""
