"""Keep imports away from the current folder, which may belong to somebody else, unless Python itself imports from there.

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
    """Finds modules whose code runs while another folder is current."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The same as Python's own finder for these modules; None for every other module."""
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
    """Install the finder in this process."""
    if not any(isinstance(finder, ImportedElsewhere) for finder in sys.meta_path):
        sys.meta_path.insert(0, ImportedElsewhere())


def check_plugins_are_installed() -> None:
    """Raise ValueError if Hydra would find a plugin that is not installed, because Hydra imports folders called `hydra_plugins`.

    The current folder, or a folder in PYTHONPATH, may contain somebody else's.
    """
    spec = importlib.util.find_spec("hydra_plugins")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if Path(place).absolute().parent.name not in ("site-packages", "dist-packages"):
            raise ValueError(
                f"Hydra would import what is in {printable(place)}, which is not an installed package: move it to another folder"
            )


def keep_processes_out() -> None:
    """Keep the processes that this one starts from importing from the current folder, unless this process does so.

    Raises ValueError if Python ignores its environment variables, which carry this setting, or if this process would import plugins.
    """
    check_plugins_are_installed()
    if {"", os.getcwd()} & set(sys.path):
        return
    if sys.flags.ignore_environment and not sys.flags.safe_path:
        raise ValueError("Python was started with -E, so the processes of a run would import from the current folder: add -P, or use -I")
    os.environ["PYTHONSAFEPATH"] = os.environ.get("PYTHONSAFEPATH") or "1"
