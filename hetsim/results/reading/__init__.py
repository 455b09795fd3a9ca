"""Reading the files of finished runs."""
