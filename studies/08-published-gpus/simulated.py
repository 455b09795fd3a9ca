"""Steps and rounds that hetsim simulates, and their closed forms: `method=ddp` with a table of all-reduces, and `method=diloco`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetsim.cluster import Cluster, Network, NodeSpec, Server
from hetsim.coordination.base import Coordination
from hetsim.coordination.local_steps import LocalSteps
from hetsim.coordination.overlapped_all_reduce import OverlappedAllReduce
from hetsim.policies.admission import Barrier
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.sim import Simulation
from hetsim.workloads.phantom import PhantomWorkload
from hetsim.workloads.task import FORWARD, OptimizerRecipe, Recipe

Numbers = NDArray[np.float64]
NUM_PARAMETERS = 25_000_000
NUM_BYTES = 4 * NUM_PARAMETERS
BUCKET_BYTES = NUM_BYTES // 2
FIRST_BYTES = 2**20
"""DDP's first bucket, of at most 1 MiB. Only shares of all bytes count, as the table of all-reduces has seconds."""
SHARES = (FIRST_BYTES / NUM_BYTES, 0.5, 0.5 - FIRST_BYTES / NUM_BYTES)
FREE = 1e-12
"""Seconds of an all-reduce that takes none: a table has times above 0."""


def step_seconds(compute: ArrayLike, reduction: ArrayLike) -> Numbers:
    """The closed form of a step on equal GPUs (docs/reference/methods.md): e_k = max(e_(k-1), f_k T) + R n_k.

    `compute` is T, the seconds of a gradient, and `reduction` is R, the seconds of an all-reduce of all bytes.
    """
    compute, reduction = np.asarray(compute, float), np.asarray(reduction, float)
    end, completed = np.zeros(np.broadcast(compute, reduction).shape), 0.0
    for share in SHARES:
        completed += share
        end = np.maximum(end, compute * (FORWARD + (1 - FORWARD) * completed)) + reduction * share
    return end


@cache
def simulated_step(compute: float, reduction: float, num_gpus: int) -> float:
    """The same, simulated: `method=ddp`, two buckets, and an all-reduce of a part of the bytes takes that part of `reduction`."""
    found = _run(OverlappedAllReduce(admission=Barrier(), bucket_bytes=BUCKET_BYTES), [compute] * num_gpus, max(reduction, FREE))
    return float(found["seconds"])


@cache
def simulated_round(period: int, compute: tuple[float, ...], reduction: float) -> float:
    """A round of DiLoCo or local SGD: `period` local steps of these seconds on each rank, then an all-reduce of `reduction` seconds."""
    found = _run(LocalSteps(admission=Barrier(), period=period), compute, max(reduction, FREE))
    return float(found["seconds"])


def _run(coordination: Coordination, compute: Sequence[float], reduction: float) -> dict[str, object]:
    table = ((1, reduction / NUM_BYTES), (NUM_BYTES, reduction))
    cluster = Cluster(
        name="published",
        nodes=tuple(NodeSpec(overhead_seconds=seconds) for seconds in compute),
        network=Network(latency_seconds=0, bytes_per_second=1e300, sharing="none", all_reduce_table=table),
        server=Server(seconds_per_update=0),
    )
    experiment = Experiment(
        method="ddp",
        coordination=coordination,
        cluster=cluster,
        workload=PhantomWorkload(num_parameters=NUM_PARAMETERS, num_samples=10**9),
        optimizer=OptimizerRecipe(Recipe("torch.optim.SGD")),
        budget=Budget(updates=1),
        batch_size=len(compute),
        local_optimizer=OptimizerRecipe(Recipe("torch.optim.SGD")) if isinstance(coordination, LocalSteps) else None,
    )
    return Simulation(experiment).run()
