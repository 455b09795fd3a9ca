"""The commands of hetsim."""
