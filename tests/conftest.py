"""Property tests try the same examples every time, and others every time with --hypothesis-profile=long; no test is timed.

Torch takes one thread: the worlds are small. What is shipped in conf/ is parsed once. The processes of all runs of a test process are
forked from one, which imports what any of them needs.
"""

import contextlib
import gc
import logging
import os
import pickle
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import forked
import hydra
import numpy as np
import omegaconf.base
import pytest
import running
import worlds
from hydra._internal import defaults_list
from hypothesis import settings
from omegaconf import OmegaConf
from realtime import pytest_runtest_protocol as pytest_runtest_protocol

from hetsim.distributed.launch import local as launch
from hetsim.trust.shipped import configs

WORKLOADS = ("hetsim.workloads.tasks.classification", "hetsim.workloads.tasks.quadratic_task", "hetsim.workloads.own.task")
launch.PRELOAD += ["pytest", "hydra", "torch._dynamo", "hetsim.sim", *WORKLOADS]
os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job, whose commands would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
forked.install()
gc.collect()  # a dataclass with slots leaves a class of the same name behind, which is a subclass until it is collected
gc.set_threshold(50_000)  # all of torch and thousands of tests are there to be looked at, and a config alone allocates as many objects
settings.register_profile("hetsim", max_examples=50, derandomize=True, database=None, deadline=None)
settings.register_profile("long", max_examples=2000, derandomize=False, database=None, deadline=None, print_blob=True)
settings.load_profile("hetsim")

FIRST = (
    *("test_no_side_effects.py", "test_readme.py", "security/test_code.py", "test_every_method.py", "distributed/test_processes.py"),
    *("owned/test_owned_data.py", "losses/test_saved_losses.py", "test_python.py", "advise/test_advise.py"),
    *("workloads/test_loader_workers.py", "test_command.py", "test_studies.py", "workloads/test_models.py", "test_sweeps.py"),
    *("losses/test_succession.py", "distributed/test_killed_processes.py", "security/test_folders.py", "losses/test_losses.py"),
    *("distributed/test_hosts.py", "losses/test_launched_losses.py", "test_site.py", "loop/test_team.py", "loop/test_team_methods.py"),
    *("test_wheel.py", "fuzz/test_fuzz.py"),
)
"""The files that take longest: none of them is to begin when the other test processes are about to end."""


FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Let each test process begin to collect elsewhere: it prepares those files' asserts, and reads what the others have prepared."""
    if [Path(each).resolve() for each in config.args] != [FOLDER] or "PYTEST_XDIST_WORKER" not in os.environ:
        return
    parts = sorted(path for path in FOLDER.iterdir() if path.is_dir() or path.match("test_*.py"))
    sizes = np.cumsum([sum(file.stat().st_size for file in (part.rglob("*.py") if part.is_dir() else (part,))) for part in parts])
    share = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) / int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    begin = np.searchsorted(sizes, share * sizes[-1])
    config.args[:] = map(str, parts[begin:] + parts[:begin])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order of `FIRST`, and then of their names."""
    places = {FOLDER / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: (places.get(item.path, len(places)), item.path))
    _sample(items)


def pytest_collection_finish() -> None:
    """Leave the modules and the tests out of all later collections."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Look once for what no test has closed: pytest would look at all objects five times."""
    gc.collect()
    gc.freeze()


def _sample(items: list[pytest.Item]) -> None:
    """Mark all but `n` cases of each test with the marker `sampled(n)` as long: the first, the last, and cases evenly between them."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_one_test in cases.values():
        marker = of_one_test[0].get_closest_marker("sampled")
        assert marker is not None
        kept = {round(place) for place in np.linspace(0, len(of_one_test) - 1, marker.args[0])}
        for place, item in enumerate(of_one_test):
            if place not in kept:
                item.add_marker("long")


_load = OmegaConf.load
_read: dict[tuple[str, int], bytes] = {}
_shipped = (f"{configs()}{os.sep}", f"{Path(hydra.__file__).parent}{os.sep}")


def _load_once(file: Any) -> Any:
    """A shipped file of conf/ or of Hydra's as it was read before, unless it has changed: Hydra reads twenty of them for each config."""
    name = str(file) if isinstance(file, Path) else str(getattr(file, "name", ""))
    if not name.startswith(_shipped):
        return _load(file)
    key = name, Path(name).stat().st_mtime_ns
    if key not in _read:
        _read[key] = pickle.dumps(_load(file))
    return pickle.loads(_read[key])


OmegaConf.load = staticmethod(_load_once)  # type: ignore[method-assign]

_map_of_choices = defaults_list._create_interpolation_map


def _map_where_needed(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
    """The choices that a defaults list may refer to: Hydra collects them for each of thirty lists, of which one or two refer to any."""
    return _map_of_choices(overrides, defaults, self_added) if any(default.is_interpolation() for default in defaults) else None


defaults_list._create_interpolation_map = _map_where_needed
omegaconf.base.parse = cache(omegaconf.base.parse)  # the texts of references, which are few


@pytest.fixture(autouse=True, scope="session")
def _share_configs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With the other test processes of this call of pytest, if there are any."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        worlds.SHARED = tmp_path_factory.getbasetemp().parent / "configs"
        worlds.SHARED.mkdir(exist_ok=True)


@pytest.fixture(autouse=True)
def _real_starts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a test whose law is about them."""
    with forked.real_starts() if request.node.get_closest_marker("real_start") else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def _no_command_is_left() -> Iterator[None]:
    """Of a test that failed, either: a run of a thousand epochs would take the processors from all tests after it."""
    yield
    running.end_all()


@pytest.fixture
def older_objects_are_frozen() -> Iterator[None]:
    """So that the collector and `gc.get_objects` see a test's own objects. All others are millions, which takes seconds."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _same_level_of_logging() -> Iterator[None]:
    """hydra.verbose=true sets it for the whole process, and Hydra composes configs only to log them then."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)
