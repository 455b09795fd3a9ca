"""The command hetsim-calibrate: what it measures and writes."""
