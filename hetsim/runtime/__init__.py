"""The parts that all worlds share: the experiment, the protocol of a world, the state of a rank, and recorders."""
