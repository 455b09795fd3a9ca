"""Processes that share the cores of hosts, in virtual time."""
