"""Checkpoints on disk: a run's state as JSON and tensors, the files, the times of writing, and the resume."""
