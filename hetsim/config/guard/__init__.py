"""What a config file from outside may say."""
