"""Who is slow in a finished job, what that costs, and what the job would take if nobody were."""
