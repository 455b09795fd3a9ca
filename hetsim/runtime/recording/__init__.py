"""What observes a run: trace, metrics, curve, history, progress and loggers."""
