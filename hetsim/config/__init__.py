"""Make the objects of a run from the arguments of a command."""
