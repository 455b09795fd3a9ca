"""Many runs by one command: jobs, launchers, and what they leave."""
