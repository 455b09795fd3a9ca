"""Checkpoints on disk: a run's state as JSON and tensors, the files, when they are written, and how a run continues from one."""
