"""Many runs from one command: jobs, launchers, and their outputs."""
