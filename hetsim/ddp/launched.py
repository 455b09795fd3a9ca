"""Start torchrun and its ranks for `hetsim-ddp-check`, so that each process ends with the one that has started it.

`python -P -m hetsim.ddp.launched torchrun …` is torchrun; each of its ranks is `python -P -m hetsim.ddp.launched SCRIPT …`, or
`-m MODULE …`.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from threading import Event, Thread

PARENT = "HETSIM_DDP_PARENT"
"""The process that starts this one. This process ends with it."""
LOOK_SECONDS = 0.5
"""The interval at which a process checks whether its parent has changed."""


def end_with(parent: int) -> None:
    """From now on, end this process at once when its parent is not the process with this id any more, so that `kill -9` leaves none."""
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    pause = Event()
    while os.getppid() == parent:
        pause.wait(LOOK_SECONDS)
    os._exit(1)


def main() -> None:
    """Run torchrun, or the script as Python would."""
    end_with(int(os.environ.pop(PARENT)))
    if sys.argv[1] == "torchrun":
        from torch.distributed.run import main as torchrun

        os.environ[PARENT] = str(os.getpid())
        torchrun(sys.argv[2:])
        return
    import hetsim.ddp.check  # noqa: F401 it watches for ranks that the script starts itself

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
