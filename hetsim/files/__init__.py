"""Files on disk: atomic writing, a run's folder, its lock, and the text, config and summary of finished runs."""
