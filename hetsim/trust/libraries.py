"""What may be imported from the current folder, which may be a stranger's: nothing, unless Python itself imports from there.

PyTorch loads NVIDIA's cuSPARSELt, whose RUNPATH (`$ORIGIN:` in 0.8.1) has an empty part: the current folder. cuSPARSELt then looks there
for the driver, libcuda.so.1. Matplotlib up to 3.10 evaluates Python in the matplotlibrc of the current folder. So every process that
imports hetsim imports both while another folder is the current one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from hetsim.checks import printable

ELSEWHERE = ("torch", "torchvision", "matplotlib")
OWN_FOLDER = Path(__file__).parents[1]


class ImportedElsewhere(MetaPathFinder):
    """Finds modules whose code runs while the current folder is another one."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As Python's own finder; None for every other module."""
        spec = PathFinder.find_spec(name, path, target) if name in ELSEWHERE else None
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_elsewhere(module: ModuleType) -> None:
            import multiprocessing.process  # noqa: F401 it stores the current folder, in which spawned children look for the script

            with contextlib.chdir(OWN_FOLDER):
                execute(module)

        spec.loader.exec_module = execute_elsewhere  # type: ignore[method-assign]
        return spec


def install() -> None:
    """From now on, in this process."""
    if not any(isinstance(finder, ImportedElsewhere) for finder in sys.meta_path):
        sys.meta_path.insert(0, ImportedElsewhere())


def check_plugins_are_installed() -> None:
    """ValueError with one sentence if Hydra, which imports what is in folders called `hydra_plugins`, would find one that is not installed.

    The current folder, or one that PYTHONPATH names, may hold a stranger's.
    """
    spec = importlib.util.find_spec("hydra_plugins")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if Path(place).absolute().parent.name not in ("site-packages", "dist-packages"):
            raise ValueError(
                f"Hydra would import what is in {printable(place)}, which is not an installed package: move it to another folder"
            )


def keep_processes_out() -> None:
    """Let the processes that this one starts import nothing from the current folder, unless this one does.

    ValueError if Python was told to ignore its environment variables, by which they learn it, or if this one would import plugins.
    """
    check_plugins_are_installed()
    if {"", os.getcwd()} & set(sys.path):
        return
    if sys.flags.ignore_environment and not sys.flags.safe_path:
        raise ValueError("Python was started with -E, so the processes of a run would import from the current folder: add -P, or use -I")
    os.environ["PYTHONSAFEPATH"] = os.environ.get("PYTHONSAFEPATH") or "1"
