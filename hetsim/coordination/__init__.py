"""Who computes, sends and waits, in what order: programs over effects, written like their papers."""
