"""What ships with hetsim, and whose other code a config may name."""
