"""Your own model, data, loss and metrics (docs/guide/own-workload.md)."""

from hetsim.workloads.own.description import Own
from hetsim.workloads.own.training import Training, workload

__all__ = ["Own", "Training", "workload"]
