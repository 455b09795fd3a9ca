"""The entry points of the commands. They handle signals before importing a command, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from hetsim.cli.command import command


def _script(name: str, module: str) -> Callable[[], None]:
    def script() -> None:
        with command(name, ()):
            import_module(f"hetsim.cli.{module}").main()

    script.__doc__ = f"The command `{name}`."
    return script


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
