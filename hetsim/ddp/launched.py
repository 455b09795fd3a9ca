"""Start torchrun and its ranks for `hetsim-ddp-check`. torch is imported before the script, and from another current folder.

`python -P -m hetsim.ddp.launched torchrun …` is torchrun; each of its ranks is `python -m hetsim.ddp.launched SCRIPT …`, or `-m MODULE …`.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from hetsim.pool.parent import end_with

SAFE = "PYTHONSAFEPATH"
AS_BEFORE = "HETSIM_DDP_SAFEPATH"
"""The value of the variable above when the user called the check."""
PARENT = "HETSIM_DDP_PARENT"
"""The process that starts this one. This process ends with it."""


def main() -> None:
    """Run torchrun, or the script as Python would."""
    end_with(int(os.environ.pop(PARENT)))
    import torch  # noqa: F401 by hetsim's finder, from elsewhere

    if sys.argv[1] == "torchrun":
        from torch.distributed.run import main as torchrun

        os.environ[PARENT] = str(os.getpid())
        torchrun(sys.argv[2:])
        return
    if (before := os.environ.pop(AS_BEFORE, "")) != os.environ.pop(SAFE, ""):
        os.environ[SAFE] = before
    import hetsim.ddp.check  # noqa: F401 it watches for ranks that the script starts itself

    if sys.argv[1] == "-m":
        if not before:
            sys.path.insert(0, os.getcwd())
        del sys.argv[:2]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    del sys.argv[0]
    if not before:
        sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
