"""The keys of a config: plain values, groups and axes of policies."""

from __future__ import annotations

AXES = ("allocation", "weighting", "discount", "compensation", "admission", "compression")
"""The axes of policies."""

REQUIRED = ("method", "seed", "batch_size", "dtype", "threads", "trace", "pictures")
"""The keys with plain values that every run needs."""
OPTIONAL = (
    *("evaluate_every_epochs", "evaluate_every_seconds", "stop_when_diverged", "device", "autocast", "data", "epochs"),
    *("nonfinite", "save_weights", "logger"),
)
"""The keys with plain values that a config may lack."""
PLAIN = (
    *REQUIRED,
    *OPTIONAL,
    "resume",
    *("trust", "data_root", "download", "learning_rate", "momentum", "local_learning_rate"),
)
"""The keys with plain values."""
OPTIMIZERS = {"optimizer": "learning_rate_schedule", "local_optimizer": "local_learning_rate_schedule"}
"""Each optimizer, with the key of its learning-rate schedule."""
TORCH_KEYS = {
    **{key: group for either in OPTIMIZERS.items() for key, group in zip(either, ("optimizer", "learning_rate_schedule"), strict=True)},
    "regional_optimizer": "optimizer",
}
"""The keys that hold a class of torch.optim, with the group of `hetsim.trust.names` that it must belong to."""
GROUPS = (
    *("backend", "cluster", "workload", "coordination", "budget", "checkpoint", "partition", "regional_optimizer"),
    *(*AXES, *OPTIMIZERS, *OPTIMIZERS.values()),
)
"""The keys that are groups of choices, or hold keys of their own."""
RATES = {"learning_rate": "optimizer", "momentum": "optimizer", "local_learning_rate": "local_optimizer"}
"""Each rate, with the optimizer that reads it."""
