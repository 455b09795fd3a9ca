"""Messages between ranks, and their sums."""
