"""The command hetsim-calibrate: its measurements and its files."""
