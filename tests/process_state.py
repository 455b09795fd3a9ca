"""The state of this process that belongs to its user, for `test_no_side_effects.py`: `python process_state.py` tries every row of CALLS."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import json
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

CALLS: dict[str, Callable[[], object]] = {}
"""Every public function, as a user's script calls it. One row after the other, in one process and one folder. What counts of a generator
is what it does between its first and its second `yield`."""
QUICK = ("workload=quadratic", "budget.epochs=2", "pictures=false")
LIBRARIES = ("asyncio", "hydra", "joblib", "logging", "matplotlib", "multiprocessing", "numpy", "random", "signal", "submitit")
LIBRARIES += ("subprocess", "torch", "warnings", "yaml")
"""The packages whose functions and methods stay what they are."""
IMPORTED = ("optuna", "pyarrow.csv", "pyarrow.parquet", "scipy.stats", "submitit", "torch.distributed", "torch.utils.flop_counter")
IMPORTED += ("torchvision",)
"""Modules whose import changes the process by itself."""
OF_HYDRA = ("hydra", "now", "python_version", "hetsim.folder", "hetsim.name")
"""Resolvers that Hydra registers anew at each use, and hetsim's own."""
OWN = """
import torch, hetsim

@hetsim.workload
def build():
    samples = [(torch.rand(1), torch.rand(1))] * 64
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout())
    return hetsim.Training(model=model, train=samples, loss=torch.nn.functional.mse_loss)
"""


def call(function: Callable[[], object]) -> Callable[[], object]:
    """Add a row."""
    CALLS[function.__name__] = function
    return function


def state() -> dict[str, Any]:
    """What a library leaves alone."""
    return {
        "environment": dict(os.environ),
        "current folder": os.getcwd(),
        "imports": (sys.path[:], [*map(id, sys.meta_path)], [*map(id, sys.path_hooks)], sys.argv[:], id(sys.modules["__main__"])),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "streams": (id(sys.stdin), id(sys.stdout), id(sys.stderr)),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook, warnings.showwarning),
        "filters of warnings": warnings.filters[:],
        "loggers": _loggers(),
        "garbage": (gc.isenabled(), gc.get_threshold()),
        "random numbers": _random_numbers(),
        "processes": (multiprocessing.get_start_method(allow_none=True), vars(forkserver._forkserver).copy()),  # type: ignore[attr-defined]
        "asyncio": id(asyncio.get_event_loop_policy()),
        "cores": os.sched_getaffinity(0),
        "scheduling": (os.sched_getscheduler(0), os.nice(0), Path("/proc/self/timerslack_ns").read_text()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "torch": _torch(),
        "matplotlib": _matplotlib(),
        "hydra": _hydra(),
        "functions": _functions(),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """What is another, with what it was and what it is. New loggers and new names of functions change nothing that was there."""
    found = {}
    for name, was in before.items():
        now = after[name]
        if isinstance(was, dict) and name in ("loggers", "functions", "environment"):
            names = {*was, *now} if name == "environment" else was
            differ = {key: (was.get(key), now.get(key)) for key in names if was.get(key) != now.get(key)}
            if differ:
                found[name] = repr(differ)[:500]
        elif isinstance(was, dict):
            found |= {f"{name}: {key}": f"{was[key]!r} became {now.get(key)!r}"[:800] for key in was if was[key] != now.get(key)}
        elif isinstance(was, list) and was != now:
            found[name] = f"{[part for part in now if part not in was]} came, {[part for part in was if part not in now]} went"
        elif was != now:
            found[name] = f"{was!r} became {now!r}"[:800]
    return found


def _loggers() -> dict[str, Any]:
    known = {name: each for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)}
    return {
        name: (each.level, each.handlers[:], each.filters[:], each.propagate, each.disabled)
        for name, each in {"root": logging.root, **known}.items()
    }


def _random_numbers() -> tuple[Any, ...]:
    import numpy as np
    import torch

    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[union-attr]


def _torch() -> tuple[Any, ...]:
    import torch

    return (
        (torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(), torch.get_default_device()),
        (torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()),
        torch.is_anomaly_enabled(),
    )


def _matplotlib() -> dict[str, Any]:
    import matplotlib

    return {"backend": matplotlib.get_backend(auto_select=False), **dict.copy(matplotlib.rcParams)}


def _hydra() -> dict[str, Any]:
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.plugins import Plugins
    from omegaconf.basecontainer import BaseContainer

    return {
        "hydra": id(GlobalHydra.instance().hydra),
        "config": id(HydraConfig.instance().cfg),
        "plugins": {name: id(each) for name, each in Plugins.instance().class_name_to_class.items()},
        "resolvers": {name: id(each) for name, each in BaseContainer._resolvers.items() if name not in OF_HYDRA},
    }


def _functions() -> dict[str, int]:
    """The identity of each function in these packages, and of each method of their classes.

    `torch.autograd.backward` is left out: a Team replaces it, in order to check each loss.
    """
    found = {}
    for module in [module for name, module in sys.modules.items() if name.split(".")[0] in LIBRARIES]:
        for name, value in [*vars(module).items()]:
            if name == "reduce_op":  # torch warns of whoever looks at it
                continue
            if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
                found[f"{module.__name__}.{name}"] = id(value)
            elif isinstance(value, type) and value.__module__ == module.__name__:
                found[f"{module.__name__}.{name}"] = id(value)
                for attribute, method in vars(value).items():
                    if callable(method) or isinstance(method, staticmethod | classmethod | property):
                        found[f"{module.__name__}.{name}.{attribute}"] = id(method)
    del found["torch.autograd.backward"]
    return found


# The rows


@call
def import_hetsim() -> None:
    import hetsim
    import hetsim.api
    import hetsim.loop
    import hetsim.sim  # noqa: F401


@call
def run_a_timing() -> None:
    import hetsim

    hetsim.run("workload=phantom", "budget.updates=20", "budget.epochs=null", folder="timing")


@call
def run_a_model() -> None:
    import hetsim

    hetsim.run("workload=digits", "budget.updates=20", "batch_size=64", "threads=2", folder="model")


@call
def run_ones_own_workload() -> None:
    import hetsim

    Path("my_own.py").write_text(OWN, encoding="utf-8")
    words = ("workload=own", "workload.module=my_own:build", "batch_size=8", "budget.updates=4", "budget.epochs=null")
    hetsim.run(*words, "method=ssgd", "checkpoint.every_updates=2", trust=["my_own"], folder="own")
    hetsim.run("resume=own", "budget.updates=6", trust=["my_own"], folder="resumed")


@call
def run_in_processes() -> None:
    import hetsim

    hetsim.run("backend=dist", "checkpoint.every_updates=5", *QUICK, folder="measured")


@call
def run_as_a_rank_of_a_launcher() -> None:
    import hetsim

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    launched = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in launched.items()})
    try:
        one = "cluster.nodes=[{count: 1, seconds_per_sample: 1e-5, overhead_seconds: 0}]"
        hetsim.run("backend=dist", "method=ssgd", one, *QUICK, folder="launched")
    finally:
        for name in launched:
            del os.environ[name]


@call
def run_what_is_refused() -> None:
    import hetsim

    for words in (
        ("nothing=1",),
        ("batch_size=1",),
        ("workload=quadratic", "method=asgd", "learning_rate=1e30", "stop_when_diverged=true"),
    ):
        try:
            hetsim.run(*words, folder="refused")
        except ValueError:
            continue


@call
def sweep() -> None:
    import hetsim

    hetsim.sweep({"method": ["ssgd", "asgd"], "workload": "phantom", "pictures": False, "budget.updates": 5}, folder="sweep")


@call
def sweep_in_processes() -> None:
    import hetsim

    hetsim.sweep({"seed": [1, 2], "workload": "phantom", "pictures": False, "budget.updates": 5}, folder="processes", processes=2)


@call
def load() -> None:
    import hetsim

    run = hetsim.load("model")
    _ = run.config, run.trace(), run.curve(), run.timeline()._repr_png_(), run._repr_html_(), repr(run)


@call
def compare() -> None:
    import hetsim

    comparison = hetsim.compare("model", "measured")
    comparison.draw("drawn")
    _ = comparison.rows, comparison._repr_html_(), repr(comparison)


@call
def table() -> None:
    import hetsim

    ranking = hetsim.table("sweep")
    ranking.write("table")
    _ = ranking.picture()._repr_png_(), ranking.to_arrow(), ranking._repr_html_(), repr(ranking)


@call
def search() -> None:
    import hetsim

    words = ("workload=phantom", "budget.updates=5", "pictures=false")
    for processes in (1, 2):
        folder = f"search{processes}"
        found = hetsim.search(*words, "batch_size=32,64", objective="seconds", trials=2, folder=folder, processes=processes)
        _ = found.trials, found._repr_html_(), repr(found)


@call
def advise() -> None:
    import hetsim

    words = ("workload=phantom", "workload.num_parameters=1000", "workload.num_samples=1200", "budget.epochs=1")
    advice = hetsim.advise("cluster=uniform4", "method=ssgd,asgd", "timing", *words, processes=1)
    _ = advice.picture()._repr_png_(), advice._repr_html_(), repr(advice)


@call
def stragglers() -> None:
    import hetsim

    slow = hetsim.stragglers("model")
    _ = slow.picture()._repr_png_(), slow._repr_html_(), repr(slow)


@call
def workload() -> None:
    import hetsim

    hetsim.workload(lambda: None)


@call
def simulation() -> None:
    from hetsim.config.build import build_experiment
    from hetsim.config.compose import composed
    from hetsim.sim import Simulation

    Simulation(build_experiment(composed(["method=ssp", "threads=2", *QUICK], folder=".").entries)[0]).run()


@call
def team() -> Iterator[None]:
    import torch
    import torch.distributed as dist

    from hetsim import Team

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    model: torch.nn.Module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    data = torch.utils.data.TensorDataset(torch.ones(32, 1), torch.ones(32, 1))
    yield
    team = Team(model, torch.optim.SGD(model.parameters(), lr=1.0), batch_size=8, trace="team")
    loader = team.loader(data, generator=torch.Generator())  # of its own, because a DataLoader draws a seed
    for inputs, targets in loader:
        team.share(torch.nn.functional.mse_loss(model(inputs), targets, reduction="none")).backward()
        team.step()
    team.close()
    yield
    dist.destroy_process_group()


def main() -> None:
    """Print what each row has changed, as JSON."""
    for name in IMPORTED:
        importlib.import_module(name)
    import matplotlib.pyplot as plt
    import numpy as np
    import torch
    from hydra import compose, initialize_config_dir

    folder = tempfile.mkdtemp()
    os.chdir(folder)
    sys.path.insert(0, folder)
    torch.set_num_threads(3)
    torch.manual_seed(1)
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0).step()  # torch wraps it when it is first used
    np.random.seed(1)
    random.seed(1)
    warnings.filterwarnings("once", category=ImportWarning)
    logging.basicConfig(level=logging.ERROR)
    signal.signal(signal.SIGUSR1, print)
    plt.rcParams["lines.linewidth"] = 7
    with initialize_config_dir(folder, version_base="1.3"):
        compose(overrides=["+mine=1"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))(torch.ones(1, 1)).sum().backward()
    torch.distributed.destroy_process_group()
    names = sys.argv[1:] or CALLS
    before = state()
    for name in names:
        if inspect.isgeneratorfunction(CALLS[name]):
            steps = CALLS[name]()
            act = partial(next, steps)
            act()
            before = state()
        else:
            act, steps = CALLS[name], ()
        gc.freeze()  # what was there before need not be looked at
        act()
        gc.collect()
        after = state()
        print(json.dumps([name, changes(before, after)]), flush=True)
        before = after
        if steps:
            deque(steps, maxlen=0)
            before = state()


if __name__ == "__main__":
    main()
