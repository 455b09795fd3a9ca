"""Checks of config files from outside."""
