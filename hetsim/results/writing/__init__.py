"""Writing the files of a run."""
