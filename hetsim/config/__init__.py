"""From the words of a command to the objects of a run."""
