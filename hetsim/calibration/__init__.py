"""From real machines to a cluster that both backends read: what is measured, what is fitted to it, and how far that is off."""
