"""Start torchrun and its ranks for `hetsim-ddp-check`, so that each process ends with the one that has started it.

`python -P -m hetsim.gradcheck.launched torchrun …` is torchrun; each of its ranks is `python -P -m hetsim.gradcheck.launched SCRIPT …`, or
`-m MODULE …`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

PARENT = "HETSIM_DDP_PARENT"
"""The process that starts this one. This process ends with it."""
LOOK_SECONDS = 0.5
"""The interval at which a process checks whether its parent has changed."""


def end_with(parent: int, look: Callable[[], None] = lambda: None) -> None:
    """From now on, end this process at once when its parent is not the process with this id any more, so that `kill -9` leaves none.

    `look` is called at the same interval.
    """
    Thread(target=_end_with, args=(parent, look), daemon=True).start()


def _end_with(parent: int, look: Callable[[], None]) -> None:
    pause = Event()
    while os.getppid() == parent:
        pause.wait(LOOK_SECONDS)
        look()
    os._exit(1)


def main() -> None:
    """Run torchrun, or the script as Python would."""
    parent = int(os.environ.pop(PARENT))
    if sys.argv[1] == "torchrun":
        end_with(parent)
        from torch.distributed.run import main as torchrun

        os.environ[PARENT] = str(os.getpid())
        torchrun(sys.argv[2:])
        return
    run_rank(parent)


def run_rank(parent: int) -> None:
    """Run the script of the command line as a rank, and watch it."""
    from hetsim.gradcheck.watch import Watch

    watch = Watch()
    end_with(parent, lambda: watch.refuse_own_ranks(multiprocessing.active_children()))
    watch.begin()
    try:
        _run_script()
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
    watch.write()


def _run_script() -> None:
    imports_there = not os.environ.get("PYTHONSAFEPATH")
    if sys.argv[1] == "-m":
        if imports_there:
            sys.path.insert(0, os.getcwd())
        del sys.argv[:2]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    del sys.argv[0]
    if imports_there:
        sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
