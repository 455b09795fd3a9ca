"""Processes that answer questions, on this machine or on the nodes of a Ray cluster."""
