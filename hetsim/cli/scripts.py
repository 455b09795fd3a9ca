"""The entry points of the commands. They handle signals before importing a command, which takes seconds."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable
from importlib import import_module

from hetsim.cli.command import command
from hetsim.trust import names


def _script(name: str, module: str) -> Callable[[], None]:
    def script() -> None:
        atexit.register(_keep_what_is_left)
        gc.disable()  # imports leave none, and Python would look for it among them again and again
        with command(name, ()):
            main = import_module(f"hetsim.cli.{module}").main
            gc.freeze()
            gc.enable()
            main()

    script.__doc__ = f"The command `{name}`."
    return script


def _keep_what_is_left() -> None:
    """Let the process end without a last look for garbage, unless a module of the user's may have left something to finalise."""
    if not names.imported:
        gc.freeze()


hetsim = _script("hetsim", "main")
advise = _script("hetsim-advise", "advise")
calibrate = _script("hetsim-calibrate", "calibrate")
catalogue = _script("hetsim-catalogue", "catalogue")
compare = _script("hetsim-compare", "compare")
ddp_check = _script("hetsim-ddp-check", "ddp_check")
launch = _script("hetsim-launch", "launch")
methods = _script("hetsim-methods", "methods")
report = _script("hetsim-report", "report")
search = _script("hetsim-search", "search")
stragglers = _script("hetsim-stragglers", "stragglers")
table = _script("hetsim-table", "table")
