"""A process's place in a run: the launcher's settings in its environment variables, its network interface, and the keys of `backend`.

This module does not import torch.

Every launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT works: torchrun, hetsim-launch, a script under mpirun. SLURM's own
variables count only in a step with several tasks, as from srun. A job's script, a shell from salloc, and a job of submitit are single
processes, which start their own.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

BY_HETSIM = "hetsim-launch"
WATCH = "HETSIM_LAUNCH_WATCH"
"""hetsim-launch's variable with a process's number and the end of a pipe, which it closes to end the process, or at its own end."""
GOES_ON = "HETSIM_LAUNCH_GOES_ON"
"""hetsim-launch's variable that tells a process whether the launcher continues when a process is lost, if the run does: 1, or 0."""
AGAIN = "HETSIM_LAUNCH_AGAIN"
"""hetsim-launch's variable with a process's `StartedAgain`, as JSON."""
PORTS = range(20000, 30000)
"""The ports for SLURM steps without MASTER_PORT. The job's and step's numbers select one."""


def wait_less_for_names() -> None:
    """Let this process ask a name server again after one second, instead of five. A RES_OPTIONS that is set stays.

    torch's store asks for the name of each address that connects to it, also of 127.0.0.1. A lost answer delays the run's start.
    """
    os.environ.setdefault("RES_OPTIONS", "timeout:1")


class StartedAgain(NamedTuple):
    """A process that was started again for a lost rank."""

    incarnation: int
    """The number of earlier starts of this rank."""
    number: int
    """The number of the run that it joins, among the runs of its processes."""
    joins_at: float
    """The time of joining, in seconds of the run."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """This process, as one of those that a launcher started."""

    by: str
    """The launcher's name."""
    rank: int
    size: int
    local_size: int | None
    """The number of processes on this host, if the launcher provides it."""
    local_rank: int | None = None
    """The index of this process on its host, from 0, if the launcher provides it."""
    address: str
    """The host of rank 0, or of the launcher whose store all processes use."""
    port: int
    goes_on: bool = False
    """Whether the launcher continues when a process is lost, if the run does."""
    again: StartedAgain | None = None

    @property
    def one_host(self) -> bool:
        """Whether all processes are known to be on this host."""
        return self.local_size == self.size

    def how_to_start(self, num_ranks: int) -> str:
        """How to start this number of processes with the launcher, in words."""
        if self.by == "SLURM":
            return f"set --ntasks {num_ranks}"
        if self.by == BY_HETSIM:
            return f"let --processes add up to {num_ranks} over all hosts"
        return f"set --nproc-per-node {num_ranks}" if self.by == "torchrun" else f"start {num_ranks}"


class RankStart(NamedTuple):
    """The way in which `launch` started a process."""

    rank: int
    incarnation: int
    """The number of earlier starts of this rank."""
    absent: Mapping[int, float]
    """The ranks that are absent at the run's begin or resume, and the begins of their absences in seconds of the run."""
    joins_at: float | None
    """The time at which this rank joins, in seconds of the run; None if it takes part from the beginning."""
    port: int
    """The port of the run's store, which the keeper hosts."""
    survives: bool
    """Whether the run survives the loss of a rank."""
    succession: bool = False
    """Whether the run survives the loss of its leader, because another rank then leads."""


def launched(variables: Mapping[str, str] = os.environ) -> Launched | None:
    """This process's launcher settings; None if no launcher started it. Raises ValueError if the variables contradict each other."""
    if not is_launched(variables):
        return None
    by, rank, size = _names(variables)
    local_rank, local_size = ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE") if by == "SLURM" else ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    process = Launched(
        by=by,
        rank=_whole(variables, rank),
        size=_whole(variables, size, at_least=1),
        local_size=_slurms_local_size(variables) if by == "SLURM" else _whole_or_none(variables, local_size, at_least=1),
        local_rank=_whole_or_none(variables, local_rank),
        address=variables.get("MASTER_ADDR") or _slurms_first_host(variables, by),
        port=_slurms_port(variables) if by == "SLURM" and "MASTER_PORT" not in variables else _whole(variables, "MASTER_PORT", at_least=1),
        goes_on=WATCH in variables and variables.get(GOES_ON) == "1",
        again=StartedAgain(*json.loads(variables[AGAIN])) if WATCH in variables and AGAIN in variables else None,
    )
    if process.rank >= process.size:
        raise ValueError(f"{rank}={process.rank} does not fit {size}={process.size}: ranks count from 0 to {process.size - 1}")
    _check_on_host(process, rank, local_rank, f"{local_size}={variables.get(local_size)}")
    if process.port > 65535:
        raise ValueError(f"MASTER_PORT must be at most 65535, not {process.port}")
    return process


def local_ranks(num_ranks: int) -> Sequence[int]:
    """The ranks of the run whose processes are on this host."""
    process = launched()
    if process is None:
        return range(num_ranks)
    if process.local_rank is None or process.local_size is None:
        return [process.rank]
    first = process.rank - process.local_rank
    return range(first, first + process.local_size)


def is_launched(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process for a run."""
    return "RANK" in variables or "WORLD_SIZE" in variables or _is_task(variables)


def first_rank(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the only one, or the first one of a launcher."""
    return not is_launched(variables) or variables.get(_names(variables)[1]) == "0"


def check_alone(subject: str = "the same run", remedy: str = "add backend=dist, or start one process") -> None:
    """Raise ValueError in a rank of hetsim, and in a process of a launcher with several processes: each would simulate."""
    variables = os.environ
    if not is_launched(variables):
        return
    by, rank, size = _names(variables)
    _whole(variables, rank)
    if (count := _whole(variables, size, at_least=1)) > 1:
        raise ValueError(f"{by} started {count} processes, and each would simulate {subject}: {remedy}")
    if by == BY_HETSIM:
        raise ValueError(f"{BY_HETSIM} starts the processes of real runs, and this one is simulated: add backend=dist, or type hetsim")


def _names(variables: Mapping[str, str]) -> tuple[str, str, str]:
    """The launcher's name, and the names of its variables for the rank and the number of processes."""
    if _is_task(variables) and not ("RANK" in variables and "WORLD_SIZE" in variables):
        return "SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"
    return _launcher_name(variables), "RANK", "WORLD_SIZE"


def _is_task(variables: Mapping[str, str]) -> bool:
    """Whether this process is one of several tasks of a SLURM step."""
    tasks = variables.get("SLURM_STEP_NUM_TASKS", "")
    return "SLURM_PROCID" in variables and tasks.isdecimal() and int(tasks) > 1


def _check_on_host(process: Launched, rank: str, local_rank: str, local_size: str) -> None:
    """Raise ValueError if the process's index or the number of processes on its host contradicts the other numbers."""
    number, count = process.local_rank, process.local_size
    if count is not None and count > process.size:
        raise ValueError(f"{local_size} does not fit the {process.size} processes of the run: a host has at most all of them")
    if number is not None and number > process.rank:
        raise ValueError(f"{local_rank}={number} does not fit {rank}={process.rank}: of the ranks on a host this is the number from 0")
    if number is not None and count is not None and not process.rank - process.size + count <= number < count:
        raise ValueError(
            f"{local_rank}={number} does not fit {local_size} and {rank}={process.rank} of {process.size} processes: "
            f"it counts the ranks of a host from 0 to {count - 1}, in their order"
        )


def _launcher_name(variables: Mapping[str, str]) -> str:
    if WATCH in variables:
        return BY_HETSIM
    return "torchrun" if "TORCHELASTIC_RUN_ID" in variables else "the launcher"


def _whole_or_none(variables: Mapping[str, str], name: str, *, at_least: int = 0) -> int | None:
    return _whole(variables, name, at_least=at_least) if name in variables else None


def _whole(variables: Mapping[str, str], name: str, *, at_least: int = 0) -> int:
    text = variables.get(name)
    if text is None:
        raise ValueError(
            f"{name} is not set, and a launcher's other variables are: let it set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none"
        )
    if not text.isdecimal() or int(text) < at_least:
        raise ValueError(f"{name} must be a whole number from {at_least} on, not {text!r}: correct it where the processes are started")
    return int(text)


def _slurms_first_host(variables: Mapping[str, str], by: str) -> str:
    """The first host of a SLURM step: node03 for node[03-05,7],other."""
    nodes = variables.get("SLURM_STEP_NODELIST", "") if by == "SLURM" else ""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    host = re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0] if first else "")
    if not host:
        problem = "SLURM_PROCID is set without SLURM_STEP_NODELIST" if by == "SLURM" else "RANK and WORLD_SIZE are set without MASTER_ADDR"
        raise ValueError(f"{problem}: set MASTER_ADDR to the address of the host of rank 0")
    return host


def _slurms_port(variables: Mapping[str, str]) -> int:
    numbers = [variables.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    job, step = (int(number) if number.isdecimal() else 0 for number in numbers)
    return PORTS[(7 * job + step) % len(PORTS)]


def _slurms_local_size(variables: Mapping[str, str]) -> int | None:
    """The number of the step's tasks on this host, from a list such as 2(x3),1; None without a list."""
    name, number = "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"
    if name not in variables or number not in variables:
        return None
    counts: list[int] = []
    for part in variables[name].split(","):
        match = re.fullmatch(r"([1-9]\d*)(?:\(x([1-9]\d*)\))?", part, flags=re.ASCII)
        if match is None:
            raise ValueError(
                f"{name} must be the numbers of tasks of the hosts, as in 2(x3),1, not {variables[name]!r}: correct or unset it"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    if (node := _whole(variables, number)) >= len(counts):
        raise ValueError(f"{number}={node} does not fit {name}={variables[name]}, of {len(counts)} hosts: correct or unset it")
    return counts[node]


LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def interface_to(address: str, port: int) -> str:
    """The interface that reaches this address. On the address's own host, the interface with it. Raises ValueError if there is none."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing: the system chooses a route, and with it an address of this host
            own_address = str(probe.getsockname()[0])
    except OSError as error:
        raise ValueError(
            f"MASTER_ADDR={address} cannot be reached ({error.strerror}): set it to an address of the host of rank 0"
        ) from None
    for _, name in socket.if_nameindex():
        if own_address in (_ipv4(name), *_ipv6(name)):
            return name
    raise ValueError(f"the network interface with this host's address {own_address} was not found: set backend.interface to its name")


def _ipv4(interface: str) -> str | None:
    """The first IPv4 address of an interface; None if it has none, or the system does not report it as Linux does."""
    if sys.platform != "linux":
        return None
    import fcntl

    SIOCGIFADDR = 0x8915  # noqa: N806
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6(interface: str) -> list[str]:
    """The IPv6 addresses of an interface."""
    try:
        with open("/proc/net/if_inet6") as lines:
            rows = [line.split() for line in lines]
    except OSError:
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[-1] == interface]


Emulation = Literal["pad", "quota", "none"]

NEEDS_ONE_CLOCK = "backend.emulate=pad needs one clock, so all processes on one host: use backend.emulate=none across hosts"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The keys of `backend`, with nulls resolved."""

    interface: str
    """The network interface that gloo binds to."""
    emulate: Emulation
    """pad: results are held until they are due. quota: each worker gets its share of a core. none: neither."""
    reduction: str = "ordered"
    """The order of sums in an all-reduce: "ordered" by rank, as in the simulator, or "native", as in the library."""
    micro_batch: int | None = None
    """The maximum number of a gradient's samples between two checks whether it is given up; None: it is computed to its end."""
    heartbeat_seconds: float = 0.5
    """The interval of a rank's heartbeats."""
    lost_after_seconds: float = 10.0
    """The time without a heartbeat after which a rank counts as lost."""
    one_host: bool = True
    """Whether all processes are known to share a host and its clock. If not, they find out."""
