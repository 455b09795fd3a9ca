"""The keys of a config: which are plain values, which are groups, and what class a policy's axis expects."""

from __future__ import annotations

from hetsim.policies.admission import Admission
from hetsim.policies.allocation.base import Allocation
from hetsim.policies.compensation import Compensation
from hetsim.policies.compression import Compression
from hetsim.policies.weighting import Discount, Weighting

AXES: dict[str, type] = {
    "allocation": Allocation,
    "weighting": Weighting,
    "discount": Discount,
    "compensation": Compensation,
    "admission": Admission,
    "compression": Compression,
}
PLAIN = (
    *("method", "seed", "batch_size", "dtype", "threads", "evaluate_every_epochs", "trace", "pictures"),
    *("trust", "data_root", "download", "learning_rate", "momentum", "local_learning_rate", "objective"),
)
OPTIMIZERS = {"optimizer": "learning_rate_schedule", "local_optimizer": "local_learning_rate_schedule"}
GROUPS = ("backend", "cluster", "workload", "coordination", "budget", *AXES, *OPTIMIZERS, *OPTIMIZERS.values())
RATES = {"learning_rate": "optimizer", "momentum": "optimizer", "local_learning_rate": "local_optimizer"}
