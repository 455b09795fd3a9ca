"""What ranks send each other, and the sums that they make."""
