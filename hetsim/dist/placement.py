"""Which device each rank of this host has."""

from __future__ import annotations

from collections.abc import Sequence

from hetsim.dist.launched import launched
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.device import check_present, num_cuda_devices


def local_ranks(experiment: Experiment) -> Sequence[int]:
    """The ranks of the run whose processes are on this host."""
    here = launched()
    if here is None:
        return range(experiment.num_ranks)
    if here.local_rank is None or here.local_size is None:
        return [here.rank]
    first = here.rank - here.local_rank
    return range(first, first + here.local_size)


def device_of(experiment: Experiment, rank: int, here: Sequence[int]) -> str:
    """The device of a rank of this host, whose ranks are `here`: those on cuda take its devices in turn, and share them if need be."""
    name = experiment.device_of(rank)
    if name != "cuda":
        return name
    on_cuda = [other for other in here if experiment.device_of(other) == "cuda"]
    return f"cuda:{on_cuda.index(rank) % max(1, num_cuda_devices())}"


def check_devices(experiment: Experiment) -> None:
    """ValueError with one sentence if a rank of this host has a device that is not there."""
    for rank in local_ranks(experiment):
        if rank < experiment.num_ranks:
            cluster, is_server = experiment.cluster, rank == experiment.num_workers
            own = cluster.server.device if is_server else cluster.nodes[rank].device
            key = "device" if own is None else "cluster.server.device" if is_server else f"the device of node {rank}"
            check_present(key, experiment.device_of(rank))
