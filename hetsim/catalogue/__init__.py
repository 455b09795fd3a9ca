"""GPUs and models by name: published seconds of training steps with their sources, and estimates of what nobody measured.

It imports no torch, so that the commands answer quickly.
"""
