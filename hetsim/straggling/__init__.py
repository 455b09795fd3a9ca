"""Find the slow ranks of a finished job, their cost, and the job's time without them."""
