"""hetsim in your own DistributedDataParallel script: each rank takes its share of the batch, and the gradient equals the serial one."""

from hetsim.ddp.team import Team

__all__ = ["Team"]
