"""Which rank computes, sends and waits, in which order: programs over effects, written as in their papers."""
