"""What runs a method, shared by all worlds: the experiment, the protocol of a world, the state of a rank, and recorders."""
