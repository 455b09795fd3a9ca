"""GPUs and models by name: published seconds of training steps with their sources, and estimates for unmeasured pairs.

It does not import torch, so that the commands answer quickly.
"""
