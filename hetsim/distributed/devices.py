"""The device of each rank of this host, and consequences of all ranks' devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hetsim.distributed.environment import launched
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.device import CPU, KINDS, check_present, split_name


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
    """The device of a rank of this host, whose ranks are `here`. Ranks on cuda get the GPUs in turn, and share them if necessary."""
    kind, index = split_name(experiment.device_of(rank))
    if kind == CPU.kind or index is not None:
        return experiment.device_of(rank)
    sharing = [other for other in here if experiment.device_of(other) == kind]
    return f"{kind}:{sharing.index(rank) % max(1, KINDS[kind].count())}"


def reducing_library(gpus: Sequence[float]) -> Literal["gloo", "nccl"]:
    """The library that sums these ranks' vectors: NCCL if each has its own GPU, otherwise gloo. `gpus` are the ranks' GPUs (0: none).

    NCCL does not accept tensors in the CPU's memory, or two ranks on one GPU.
    """
    return "nccl" if all(gpus) and len(set(gpus)) == len(gpus) else "gloo"


def shared_gpu_warnings(gpus: Sequence[float]) -> list[str]:
    """A sentence for each GPU that several ranks share."""
    ranks = {gpu: [str(rank) for rank, other in enumerate(gpus) if other == gpu] for gpu in gpus if gpu}
    return [
        f"ranks {', '.join(sharing[:-1])} and {sharing[-1]} share a GPU: the steps of one take longer while another computes"
        for sharing in ranks.values()
        if len(sharing) > 1
    ]


def check_devices(experiment: Experiment) -> None:
    """Raise ValueError if this host lacks a rank's device."""
    for rank in local_ranks(experiment):
        if rank < experiment.num_ranks:
            is_server = rank >= experiment.num_workers
            own = experiment.cluster.end(rank).device
            try:
                check_present("cluster.server.device" if own is not None and is_server else "device", experiment.device_of(rank))
            except ValueError as error:
                if own is None or is_server:
                    raise
                raise ValueError(f"node {rank}, in its row of cluster.nodes: {error}") from None
