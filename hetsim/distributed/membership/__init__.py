"""Which ranks take part in a run, and which are lost."""
