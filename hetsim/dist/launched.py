"""What the launcher that started this process tells it by environment variables. Nothing here imports torch.

Every launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT will do: torchrun, hetsim-launch, a script under mpirun. Of SLURM's
own variables, those of a step with several tasks count, which srun sets: a job's script, a shell that salloc started, and a job of
submitit's are one process, which starts its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

WATCH = "HETSIM_LAUNCH_WATCH"
"""The variable by which hetsim-launch hands each process its own number and the end of a pipe that is closed when it lets go, or ends."""
GOES_ON = "HETSIM_LAUNCH_GOES_ON"
"""The variable by which hetsim-launch tells each process that it goes on when one is lost, if the run does: 1, or 0."""
PORTS = range(20000, 30000)
"""From which a SLURM step takes its port, by the numbers of job and step, where MASTER_PORT does not say it."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """This process among those that a launcher started."""

    by: str
    """The launcher's name."""
    rank: int
    size: int
    local_size: int | None
    """The number of processes on this host, if the launcher says it."""
    local_rank: int | None = None
    """Which of them this one is, from 0, if the launcher says it."""
    address: str
    """Of the host of rank 0, or of the launcher, whose store all processes connect to."""
    port: int
    goes_on: bool = False
    """Whether the launcher goes on when a process is lost, if the run does."""

    @property
    def one_host(self) -> bool:
        """Whether all processes are known to be on this host."""
        return self.local_size == self.size

    def how_to_start(self, num_ranks: int) -> str:
        """What to tell the launcher so that it starts so many processes."""
        if self.by == "SLURM":
            return f"set --ntasks {num_ranks}"
        if self.by == "hetsim-launch":
            return f"let --processes add up to {num_ranks} over all hosts"
        return f"set --nproc-per-node {num_ranks}" if self.by == "torchrun" else f"start {num_ranks}"


def launched(variables: Mapping[str, str] = os.environ) -> Launched | None:
    """What these environment variables say; None if no launcher started this process. ValueError with one sentence if they do not fit."""
    if not is_launched(variables):
        return None
    if "RANK" in variables and "WORLD_SIZE" in variables:
        by, rank, size, local = _by(variables), "RANK", "WORLD_SIZE", variables.get("LOCAL_WORLD_SIZE")
    else:
        by, rank, size, local = "SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", _slurms_local_size(variables)
    found = Launched(
        by=by,
        rank=_whole(variables, rank),
        size=_whole(variables, size, at_least=1),
        local_size=_or_none(local),
        local_rank=_or_none(variables.get("SLURM_LOCALID" if by == "SLURM" else "LOCAL_RANK")),
        address=variables.get("MASTER_ADDR") or _slurms_first_host(variables, by),
        port=_slurms_port(variables) if by == "SLURM" and "MASTER_PORT" not in variables else _whole(variables, "MASTER_PORT", at_least=1),
        goes_on=WATCH in variables and variables.get(GOES_ON) == "1",
    )
    if found.rank >= found.size:
        raise ValueError(f"{rank}={found.rank} does not fit {size}={found.size}: ranks count from 0 to {found.size - 1}")
    if found.port > 65535:
        raise ValueError(f"MASTER_PORT must be at most 65535, not {found.port}")
    return found


def is_launched(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process, as one of those of a run."""
    tasks = variables.get("SLURM_STEP_NUM_TASKS", "")
    return ("RANK" in variables and "WORLD_SIZE" in variables) or ("SLURM_PROCID" in variables and tasks.isdecimal() and int(tasks) > 1)


def first_rank(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the only one, or the first of those that a launcher started."""
    return not is_launched(variables) or variables.get("RANK" if "RANK" in variables else "SLURM_PROCID") == "0"


def _or_none(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _by(variables: Mapping[str, str]) -> str:
    if WATCH in variables:
        return "hetsim-launch"
    return "torchrun" if "TORCHELASTIC_RUN_ID" in variables else "the launcher"


def _whole(variables: Mapping[str, str], name: str, *, at_least: int = 0) -> int:
    text = variables.get(name)
    if text is None:
        raise ValueError(f"{name} is not set, but RANK and WORLD_SIZE are: let the launcher set it, or unset these for a run of its own")
    if not text.isdecimal() or int(text) < at_least:
        raise ValueError(f"{name} must be a whole number from {at_least} on, not {text!r}: correct it where the processes are started")
    return int(text)


def _slurms_first_host(variables: Mapping[str, str], by: str) -> str:
    """The name of the first host of a SLURM step, as in node03 of node[03-05,7],other."""
    nodes = variables.get("SLURM_STEP_NODELIST", "") if by == "SLURM" else ""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    host = re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0] if first else "")
    if not host:
        who = "SLURM_PROCID is set without SLURM_STEP_NODELIST" if by == "SLURM" else "RANK and WORLD_SIZE are set without MASTER_ADDR"
        raise ValueError(f"{who}: set MASTER_ADDR to the address of the host of rank 0")
    return host


def _slurms_port(variables: Mapping[str, str]) -> int:
    numbers = [variables.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    job, step = (int(number) if number.isdecimal() else 0 for number in numbers)
    return PORTS[(7 * job + step) % len(PORTS)]


def _slurms_local_size(variables: Mapping[str, str]) -> str | None:
    """How many tasks of the step are on this host, of a list such as 2(x3),1."""
    counts: list[str] = []
    for part in variables.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return None
        counts += [found[1]] * int(found[2] or 1)
    node = variables.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None
