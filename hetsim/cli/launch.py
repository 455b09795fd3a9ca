"""The command `hetsim-launch`: one call on each host starts the processes of a run on several hosts."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from hetsim.cli.command import Parser, command
from hetsim.distributed.launch.failure_report import ENDED, LauncherStop
from hetsim.errors import RunFailed, RunStopped
from hetsim.runtime.checkpointing import STOPPED
from hetsim.runtime.output import outlive_readers
from hetsim.version import __version__

DESCRIPTION = """Start the processes of one run (backend=dist) on this host. Call hetsim-launch once on each host, with the same arguments
for hetsim."""
LOOPBACK = "127.0.0.1:0"


def main() -> None:
    """Exits with status 0 if the run succeeded, with 1 and a sentence if it failed, and with 130 after Ctrl-C.

    After SIGTERM or SIGUSR1, the status is 75 if the run has saved a checkpoint, else 143.
    """
    outlive_readers("hetsim-launch")
    parser = Parser(prog="hetsim-launch", description=DESCRIPTION)
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="the number of hosts (1)")
    parser.add_argument("--node-rank", type=int, metavar="K", help="the number of this host, from 0")
    parser.add_argument("--processes", type=int, default=1, metavar="P", help="the number of processes to start on this host (1)")
    parser.add_argument("--master", metavar="HOST:PORT", help="an address of the host with --node-rank 0, and a free port on that host")
    parser.add_argument(
        "words",
        metavar="WORDS",
        nargs=argparse.REMAINDER,
        help="after --: the arguments of hetsim, or hetsim-calibrate followed by its arguments",
    )
    arguments = parser.parse_args()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns, at length, of every connection that breaks
    stop = LauncherStop()
    with command(parser.prog, (ValueError, RunFailed, OSError)) as tell:
        if arguments.nodes > 1 and (arguments.node_rank is None or arguments.master is None):
            raise ValueError(f"--nodes {arguments.nodes} needs --node-rank K and --master HOST:PORT: give both")
        address, port = _place(arguments.master or LOOPBACK)
        try:
            with stop.by_signals():
                _run(
                    stop,
                    nodes=arguments.nodes,
                    node=arguments.node_rank or 0,
                    processes=arguments.processes,
                    address=address,
                    port=port,
                    words=_words(arguments.words),
                )
        except RunStopped:
            sys.exit(STOPPED)
        except (RunFailed, OSError, SystemExit):
            if stop.asked:
                tell("ended by SIGTERM or SIGUSR1: the run saves no checkpoints")
                sys.exit(ENDED)
            raise


def _run(stop: LauncherStop, **call: Any) -> None:
    from hetsim.distributed.launch.call import Call, needing_the_store
    from hetsim.distributed.launch.host import run_on_this_host

    this_host = Call(**call, version=__version__)
    with needing_the_store(this_host):
        run_on_this_host(this_host, stop)


def _words(typed: list[str]) -> tuple[str, ...]:
    """The arguments for hetsim, without words that may precede them."""
    words = typed[1:] if typed[:1] == ["--"] else typed
    return tuple(words[1:] if words[:1] == ["hetsim"] else words)


def _place(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, or of [::1]:29500."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"--master must be HOST:PORT, as in 192.168.1.5:29500, not {text}")
    return host.removeprefix("[").removesuffix("]"), int(port)


if __name__ == "__main__":
    main()
