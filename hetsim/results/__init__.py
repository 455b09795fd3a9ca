"""What a run leaves: its folder, summary and figures; and tables of several runs."""
