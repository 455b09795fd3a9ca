"""Who may know what, read off the source. Each law is a checker of a text, and each checker is seen to catch a small bad text."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import trips

import hetsim
from hetsim import effects

PACKAGE = Path(hetsim.__file__).parent
FILES = {path.relative_to(PACKAGE.parent).as_posix(): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
METHODS = {name: text for name, text in FILES.items() if name.startswith(("hetsim/policies/", "hetsim/coordination/"))}

# Imports


@cache
def imports(text: str, package: str = "hetsim") -> frozenset[str]:
    """Every module that a text names, whether at its top or in a function, and every attribute of one that it reaches through."""
    found = set()
    for part in ast.walk(ast.parse(text)):
        if isinstance(part, ast.Import):
            found |= {alias.name for alias in part.names}
        elif isinstance(part, ast.ImportFrom):
            above = ".".join(package.split(".")[: len(package.split(".")) - part.level + 1]) if part.level else ""
            module = ".".join(filter(None, (above, part.module)))
            found |= {module} | {f"{module}.{alias.name}" for alias in part.names}
        elif isinstance(part, ast.Attribute):
            found.add(dotted(part))
        elif called(part) in ("import_module", "__import__"):
            found |= {argument.value for argument in part.args if isinstance(argument, ast.Constant)} or {"anything"}
    return frozenset(found)


def dotted(part: ast.expr) -> str:
    """The text of a chain of names, such as torch.distributed.nn; of any other attribute, its own name."""
    names = []
    while isinstance(part, ast.Attribute):
        names.append(part.attr)
        part = part.value
    return ".".join((part.id, *reversed(names))) if isinstance(part, ast.Name) else names[0]


def room(name: str) -> str:
    """The package that a file lies in."""
    return name.rpartition("/")[0].replace("/", ".")


def knows(text: str, *modules: str, package: str = "hetsim") -> set[str]:
    """Which of these modules, or what is in them, a text imports."""
    return {module for module in modules if any(name == module or name.startswith(module + ".") for name in imports(text, package))}


@pytest.mark.parametrize(
    "text",
    [
        "import simpy",
        "import simpy.events as e",
        "from simpy import Environment",
        "def f():\n    from simpy.events import Timeout",
        "import importlib\nimportlib.import_module('simpy')",
        "__import__('simpy')",
        "if x:\n    try:\n        import numpy, simpy\n    except ImportError: pass",
    ],
)
def test_an_import_is_found_wherever_it_hides(text: str):
    """At the top, in a function, under another name, from a submodule, or by its name as a string."""
    assert knows(text, "simpy") == {"simpy"}
    assert knows(text, "simp") == set()


def test_a_submodule_is_found_however_it_is_reached():
    """`import torch` alone is not torch.distributed; reaching through it is. A relative import is the absolute one."""
    assert knows("import torch", "torch.distributed") == set()
    assert knows("import torch\ntorch.distributed.init_process_group()", "torch.distributed") == {"torch.distributed"}
    assert knows("from torch import distributed", "torch.distributed") == {"torch.distributed"}
    assert knows("from ..sim import drive", "hetsim.sim", package="hetsim.policies") == {"hetsim.sim"}


@pytest.mark.parametrize("name", METHODS)
def test_methods_know_no_world(name: str):
    """Nothing in policies or coordination imports a clock, a world or a config system, nor imports by name."""
    worlds = (
        "simpy",
        "torch.distributed",
        "torch.multiprocessing",
        "multiprocessing",
        "threading",
        "socket",
        "asyncio",
        "time",
        "datetime",
    )
    edges = (
        "hydra",
        "omegaconf",
        "hetsim.sim",
        "hetsim.distributed",
        "hetsim.cli",
        "hetsim.cluster",
        "hetsim.runtime",
        "hetsim.results",
        "importlib",
        "anything",
    )

    assert knows(METHODS[name], *worlds, *edges, package=room(name)) == set()


ONLY = {
    "simpy": ("hetsim/sim/",),
    "torch.distributed": ("hetsim/distributed/", "hetsim/loop/", "hetsim/gradcheck/"),
    "torchvision": ("hetsim/workloads/data/torchvision.py", "hetsim/workloads/models/torchvision.py"),
    "hydra": ("hetsim/config/", "hetsim/sweeps/"),
    "omegaconf": ("hetsim/config/", "hetsim/sweeps/"),
}


@pytest.mark.parametrize("module", ONLY)
def test_each_world_is_known_in_one_place(module: str):
    """SimPy in sim, torch.distributed in distributed, loop and gradcheck, Hydra in config and sweeps: there, and nowhere else."""
    who = [name for name, text in FILES.items() if knows(text, module, package=room(name))]

    assert [name for name in who if not name.startswith(ONLY[module])] == []


@pytest.mark.parametrize("module", ["simpy", "torchvision", "hydra", "omegaconf"])
def test_the_one_place_that_may_know_a_world_does(module: str):
    """Otherwise the law above would hold of nothing."""
    assert [name for name, text in FILES.items() if knows(text, module, package=room(name))] != []


GROUND = ("effects", "vector", "checks", "errors", "memory", "plain", "version", "files", "pool")
"""What any room may import, if a line of MAY_IMPORT does not name fewer."""
PLANNED = ("coordination", "cluster", "workloads", "runtime", "checkpoints", "results", *GROUND)
"""What both backends stand on."""
EXPERIMENTS = ("trust", "policies", *PLANNED)
"""What config reads a run from and hands it to."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "version.py": (),
    "vector.py": (),
    "checks.py": (),
    "memory.py": (),
    "errors.py": (),
    "ddp/": (),
    "plain.py": ("vector",),
    "effects.py": ("vector", "errors"),
    "__init__.py": ("version", "api", "loop", "workloads.own"),
    "__main__.py": ("cli.scripts",),
    "trust/": ("trust", "checks"),
    "files/": ("files", "checks", "errors", "memory", "trust"),
    "pool/": ("pool", "files", "errors", "version"),
    "policies/": ("effects", "vector", "checks", "policies"),
    "coordination/": ("policies", "effects", "vector", "checks", "coordination"),
    "catalogue/": ("catalogue", "checks", "cluster.quantities", "files.reading"),
    "cluster/": ("cluster", "vector", "checks", "errors"),
    "workloads/": ("workloads", "effects", "vector", "checks", "memory", "trust.names"),
    "runtime/": ("runtime", "coordination", "cluster", "workloads", *GROUND),
    "checkpoints/": ("checkpoints", "runtime", "coordination", "policies", "workloads", *GROUND),
    "calibration/measuring/": ("answers", "calibration", "config", "distributed", "sim", *EXPERIMENTS),
    "calibration/": ("calibration", "coordination", "policies", "cluster", "effects", "vector"),
    "results/reading/": ("results.reading", "runtime", "trust", *GROUND),
    "results/writing/": ("results.writing", "results.reading", "runtime", *GROUND),
    "results/tables/": (
        "answers",
        "cluster.quantities",
        "results.tables",
        "results.writing",
        "results.reading",
        "runtime",
        "trust",
        *GROUND,
    ),
    "results/comparison/": ("answers", "results", "runtime", *GROUND),
    "results/__init__.py": (),
    "answers/": ("answers", "results.writing", "runtime", *GROUND),
    "reports/": ("reports", "answers", "results", "runtime", *GROUND),
    "sim/": ("sim", *PLANNED),
    "distributed/__init__.py": ("distributed.backend",),
    "distributed/environment.py": ("distributed.environment",),
    "distributed/pacing/": ("distributed.pacing", "distributed.environment", "cluster", "runtime", "files"),
    "distributed/communication/": (
        *("distributed.communication", "distributed.pacing", "distributed.environment"),
        *("coordination", "workloads", "cluster", *GROUND),
    ),
    "distributed/membership/": (
        *("distributed.membership", "distributed.communication", "distributed.pacing", "distributed.environment"),
        *("cluster", "runtime", *GROUND),
    ),
    "distributed/rank/": (
        *("distributed.rank", "distributed.membership", "distributed.communication", "distributed.pacing"),
        *("distributed.environment", *PLANNED),
    ),
    "distributed/launch/": (
        *("distributed.launch", "distributed.rank", "distributed.membership", "distributed.communication", "distributed.pacing"),
        *("distributed.environment", *PLANNED),
    ),
    "distributed/backend.py": ("distributed", "workloads", "runtime", "checks"),
    "gradcheck/turning.py": ("policies.allocation",),
    "gradcheck/": ("gradcheck",),
    "loop/": (
        *("loop", "gradcheck.turning", "config", "checkpoints"),
        *("distributed.communication", "distributed.pacing", "distributed.rank", *EXPERIMENTS),
    ),
    "config/": (
        "config",
        "catalogue",
        "calibration.composition",
        "distributed.environment",
        "distributed.launch.failure_report",
        *EXPERIMENTS,
    ),
    "sweeps/": ("sweeps", "config", "distributed.environment", "distributed.launch.failure_report", *EXPERIMENTS),
    "searches/": ("searches", "answers", "sweeps", "config", *EXPERIMENTS),
    "advice/": ("advice", "answers", "sweeps", "config", "catalogue", "distributed.environment", "sim.backend", *EXPERIMENTS),
    "straggling/": ("straggling", "answers", "advice.simulated", "calibration.from_trace", *EXPERIMENTS),
    "api/": ("api", "answers", "reports", "straggling", "advice", "searches", "sweeps", "config", *EXPERIMENTS),
    "cli/": (
        "cli.command",
        "cli.completion",
        "cli.ending",
        "answers",
        "reports",
        "catalogue",
        "advice",
        "searches",
        "straggling",
        "sweeps",
        "config",
        "calibration.measuring",
        "gradcheck",
        "distributed",
        *EXPERIMENTS,
    ),
}
"""By the beginning of a file's path in hetsim/, of which the longest counts: the modules and rooms of hetsim that it may import."""


def sideways(name: str, text: str) -> set[str]:
    """What of hetsim a file imports that lies above it."""
    place = max((place for place in MAY_IMPORT if name.startswith(f"hetsim/{place}")), key=len)
    allowed = [f"hetsim.{module}" for module in MAY_IMPORT[place]]
    own = {found for found in imports(text, room(name)) if found.startswith("hetsim.")}
    return {found for found in own if not any(f"{found}.".startswith(f"{module}.") or module.startswith(f"{found}.") for module in allowed)}


@pytest.mark.parametrize("name", FILES)
def test_imports_point_one_way(name: str):
    """From what is started to what it stands on; inside the real backend ground < pacing < communication < membership < rank < launch."""
    assert sideways(name, FILES[name]) == set()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hetsim/policies/new.py", "from hetsim.coordination import plan"),
        ("hetsim/effects.py", "import hetsim.policies.allocation"),
        ("hetsim/results/tables/new.py", "from hetsim.results.comparison.sides import Sides"),
        ("hetsim/results/reading/new.py", "from hetsim.sim.backend import Simulation"),
        ("hetsim/files/new.py", "from hetsim.runtime.recording.trace import Trace"),
        ("hetsim/pool/new.py", "from hetsim.sweeps.sweep import Sweep"),
        ("hetsim/distributed/pacing/new.py", "from hetsim.distributed.communication.transport import Transport"),
        ("hetsim/distributed/rank/new.py", "from hetsim.distributed.launch.process import join"),
        ("hetsim/sweeps/new.py", "from hetsim.api import run"),
        ("hetsim/cli/new.py", "from hetsim.api.calls import run"),
    ],
)
def test_an_import_against_the_direction_is_caught(name: str, text: str):
    """A policy that knows a coordination, a rank that knows its launcher, a command that goes by way of the Python API."""
    assert sideways(name, text) != set()


def test_the_worlds_do_not_know_each_other():
    """The simulator and the real backend meet only in what both read, and nothing below the Python API and the commands imports them."""
    edges = ("hetsim.sim", "hetsim.distributed", "hetsim.cli", "hetsim.api")
    meets = {name: knows(text, *edges, package=room(name)) for name, text in FILES.items()}

    assert {name for name, found in meets.items() if name.startswith("hetsim/sim/") and found - {"hetsim.sim"}} == set()
    assert {name for name, found in meets.items() if name.startswith("hetsim/distributed/") and found - {"hetsim.distributed"}} == set()
    assert {name for name, found in meets.items() if "hetsim.cli" in found and not name.startswith("hetsim/cli/")} == {"hetsim/__main__.py"}
    assert {name for name, found in meets.items() if "hetsim.api" in found} == {
        "hetsim/__init__.py",
        "hetsim/api/__init__.py",
        "hetsim/api/calls.py",
    }


MOST_LINES, MOST_FILES, MOST_LOOSE_MODULES = 700, 15, 9
CROWDED = {
    "hetsim.advice": 16,
    "hetsim.coordination": 20,  # the path of a coordination is the `_target_` of its method
    "hetsim.cli": 17,
    "hetsim.config": 16,
    "hetsim.loop": 16,
    "hetsim.sim": 16,
}
"""The folders with more than `MOST_FILES` files."""
BOUNDS = {
    "files: hetsim-compare, in results/": 8,
    "files: a lost rank, in distributed/": 20,
    "files: a Team, in loop/": 14,
    "files: a run's config, in config/, sweeps/ and trust/": 16,
    "files: hetsim.run, in api/, config/, sweeps/ and trust/": 22,
    "files to touch for a new effect": 5,
    "files to touch for a new device": 4,
    "files to touch for a new recorder": 4,
    "functions of other libraries that hetsim replaces": 8,
    "modules of fewer than 60 lines with one reader": 14,
    "files of hetsim": 429,
    "% of lines that import": 8.0,
    "lines of hetsim": 57_983,
}
"""What a reader of hetsim pays (`tests/trips.py`). These numbers may only fall: lower one as soon as the code allows it."""


@pytest.mark.parametrize("name", BOUNDS)
def test_trips_do_not_become_longer(name: str):
    """A question leads through few files, and a new class is entered in few places."""
    assert trips.figures()[name] <= BOUNDS[name]


def test_every_figure_has_a_bound():
    """A figure without a bound could rise unseen."""
    assert trips.figures().keys() == BOUNDS.keys()


def test_no_file_and_no_folder_is_too_large():
    """A file or a folder that outgrows its place is where newcomers get lost."""
    files = {module: trips.num_lines(module) for module in trips.modules()}
    folders = {folder: number for folder, number in trips.files_by_folder().items() if number > MOST_FILES}

    assert {module: lines for module, lines in files.items() if lines > MOST_LINES} == {}
    assert {folder: number for folder, number in folders.items() if number > CROWDED.get(folder, MOST_FILES)} == {}


def test_a_trip_is_counted(monkeypatch: pytest.MonkeyPatch):
    """The modules in the rooms that the first one imports, at any distance, in functions too, without those of other rooms."""
    texts = {
        "hetsim.a.one": "def f():\n    from hetsim.a import two\n",
        "hetsim.a.two": "from hetsim.b.three import X\nfrom hetsim.a.four import Y\n",
        "hetsim.a.four": "import torch\n\ntorch.autograd.backward = None\n",
        "hetsim.b.three": "from hetsim.a.five import Z\n\nX = Z\n",
        "hetsim.a.five": "Z = 1\nY = 2\n",
    }
    monkeypatch.setattr(trips, "modules", lambda: texts)
    trips.imports_of.cache_clear()
    try:
        assert trips.closure(["hetsim.a.one"], ("hetsim.a",)) == {"hetsim.a.one", "hetsim.a.two", "hetsim.a.four"}
        assert trips.replaced_functions() == ["hetsim.a.four: torch.autograd.backward = None"]
        assert trips.small_modules() == ["hetsim.a.five", "hetsim.a.four", "hetsim.a.two", "hetsim.b.three"]
        assert trips.files_by_folder() == {"hetsim.a": 4, "hetsim.b": 1}
    finally:
        trips.imports_of.cache_clear()


def test_no_percentage_has_an_exponent() -> None:
    """130 %, and not 1.3e+02 %."""
    found = [path for path in PACKAGE.rglob("*.py") if re.search(r"\.\dg\} ?%", path.read_text(encoding="utf-8"))]

    assert found == []


def test_few_modules_are_in_no_room():
    """What a program may ask, and with what arithmetic; everything else has a room."""
    assert len([name for name in FILES if name.count("/") == 1]) <= MOST_LOOSE_MODULES


# Branches

WORLDLY = {
    "backend",
    "sim",
    "dist",
    "simulated",
    "simulator",
    "simulation",
    "simulate",
    "distributed",
    "virtual",
    "emulate",
    "phantom",
    "tensor",
}


def words(part: ast.AST) -> Iterator[str]:
    """The words of every name, attribute and string in it."""
    for inner in ast.walk(part):
        text = {ast.Name: "id", ast.Attribute: "attr", ast.Constant: "value", ast.keyword: "arg"}.get(type(inner))
        if text is not None and isinstance(said := getattr(inner, text), str):
            yield from re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", said).lower())


def choices(text: str) -> Iterator[ast.AST]:
    """Everything in a text that decides which way it goes."""
    for part in ast.walk(ast.parse(text)):
        if isinstance(part, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield part.test
        elif isinstance(part, ast.Match):
            yield part.subject
            yield from part.cases
        elif isinstance(part, ast.comprehension):
            yield from part.ifs
        elif isinstance(part, ast.BoolOp | ast.Compare | ast.Subscript):
            yield part


def branches_on_the_backend(text: str) -> set[str]:
    """The worldly words that a text decides by."""
    return {word for choice in choices(text) for word in words(choice)} & WORLDLY


@pytest.mark.parametrize("name", METHODS)
def test_methods_do_not_branch_on_the_backend(name: str):
    """There is no `if simulated` anywhere, and there never is to be one."""
    assert branches_on_the_backend(METHODS[name]) == set()


@pytest.mark.parametrize(
    "text",
    [
        "if simulated: pass",
        "if self.is_sim: pass",
        "x = 1 if node.backend == 'dist' else 2",
        "while not plan.virtualTime: pass",
        "match world:\n    case 'sim': pass",
        "assert kind != 'Simulator'",
        "y = [g for g in gs if g.simulated]",
        "z = simulate and 3",
        "rate = {'sim': 1, 'dist': 2}[backend]",
        "if isinstance(weights, Phantom): pass",
    ],
)
def test_a_branch_on_the_backend_is_caught(text: str):
    """By name, attribute, string, pattern, comprehension, short circuit or table."""
    assert branches_on_the_backend(text) != set()


def test_a_branch_on_anything_else_is_none():
    """Words are compared whole: a distance and a discount are no dist."""
    assert branches_on_the_backend("if distance(discount) > similar: pass") == set()


# Forgotten yield from

EFFECTS = {
    name
    for name, kind in vars(effects).items()
    if isinstance(kind, type) and issubclass(kind, effects.Effect) and kind is not effects.Effect
}


@cache
def programs(text: str) -> set[str]:
    """The functions that a text says to return a Program."""
    functions = [part for part in ast.walk(ast.parse(text)) if isinstance(part, ast.FunctionDef) and part.returns is not None]
    return {function.name for function in functions if ast.unparse(function.returns).strip("'\"").startswith("Program")}


def forgotten(text: str, *others: str) -> list[int]:
    """Lines of `text` where an effect or a program is made but not asked: it must stand directly behind `yield from`.

    An effect may also be an argument of Start; a function that is no generator itself may return a program that it chose.
    """
    tree = ast.parse(text)
    names = EFFECTS.union(*map(programs, (text, *others)))
    asked = {id(part.value) for part in ast.walk(tree) if isinstance(part, ast.YieldFrom)}
    for part in ast.walk(tree):
        if isinstance(part, ast.Call) and called(part) == "Start":
            asked |= {
                id(argument) for argument in (*part.args, *(keyword.value for keyword in part.keywords)) if called(argument) in EFFECTS
            }
        if (
            isinstance(part, ast.FunctionDef)
            and part.name in names
            and not any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(part))
        ):
            for returned in (inner.value for inner in ast.walk(part) if isinstance(inner, ast.Return)):
                asked |= {id(returned)} if not isinstance(returned, ast.IfExp) else {id(returned.body), id(returned.orelse)}
    return sorted(part.lineno for part in ast.walk(tree) if called(part) in names and id(part) not in asked)


def called(part: ast.AST) -> str | None:
    """The name of what a call calls: f of f(), self.f() and module.f()."""
    return getattr(part.func, "id", getattr(part.func, "attr", None)) if isinstance(part, ast.Call) else None


@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith("hetsim/coordination/")])
def test_no_yield_from_is_forgotten(name: str):
    """Time passes at a `yield from` and nowhere else: whatever takes time stands behind one."""
    assert forgotten(METHODS[name], *METHODS.values()) == []


@pytest.mark.parametrize(
    "line",
    [
        "Send(3, x)",
        "g = Gradient(at=x, batch=b)",
        "yield Receive(3)",
        "pending = Start(Gradient(at=x, batch=b))",
        "going = not Commit(1, state)",
        "fx.AllReduce(x)",
        "x = (yield from Wait(p)) + Now()",
        "self.compute(x)",
        "x = self.compute(x)",
        "yield from [self.compute(x)]",
        "yield from Start(self.compute(x))",
        "return self.compute(x)",
    ],
)
def test_a_forgotten_yield_from_is_caught(line: str):
    """An effect or a program on its own, assigned, merely yielded, wrapped, or returned by a generator."""
    program = f"def program(self, x) -> Program[None]:\n    yield from Now()\n    {line}\n"
    compute = "def compute(self, x) -> Program[int]:\n    yield from Now()\n"

    assert 3 in forgotten(program, compute)


@pytest.mark.parametrize(
    "text",
    [
        "def program(self) -> Program[None]:\n    x = yield from Gradient(at=1, batch=b)\n    return (yield from self.program())",
        "def program(self) -> Program[None]:\n    p = yield from Start(Gradient(at=1, batch=b))\n    yield from Wait(p)",
        "def program(self) -> Program[None]:\n    return self.server() if node else self.worker()\ndef server(self) -> Program[None]: ...",
        "def other(self):\n    return isinstance(x, Receive)",
    ],
)
def test_what_is_asked_is_not_caught(text: str):
    """Directly behind `yield from`, started, or chosen by a function that is no generator."""
    assert forgotten(text) == []


def test_the_laws_are_about_something():
    """There are effects, programs and files to look at."""
    assert {"Gradient", "Update", "Send", "Receive", "AllReduce", "Gather", "Start", "Wait", "Commit", "Now"} <= EFFECTS
    assert {"program", "worker", "server"} <= set().union(*map(programs, METHODS.values()))
    assert len(METHODS) >= 8


# What is imported when


def modules_after(script: str) -> set[str]:
    """What a fresh interpreter has imported at the end of this script."""
    script = textwrap.dedent(script) + "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "world"), [("ssgd", "hetsim.sim.lockstep.world"), ("dbs_sgd", "hetsim.sim.world")])
def test_a_timing_only_run_imports_neither_torch_nor_scipy_stats(tmp_path: Path, method: str, world: str):
    """A phantom is sizes only, even with SGD in the config, log-normal noise in the cluster and a trace on disk.

    Without a server, ranks run in lockstep, which needs no SimPy.
    """
    loaded = modules_after(f"""
        from pathlib import Path
        from hydra import compose, initialize_config_dir
        from hetsim.config.build import build_experiment
        from hetsim.config.compose import entries_of
        from hetsim.trust.shipped import configs
        with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
            overrides = ["method={method}", "workload=phantom", "cluster=mixed8", "budget.updates=20", "pictures=false"]
            config = compose("config", overrides=overrides)
        made, backend = build_experiment(entries_of(config))
        assert backend.run(made, Path({str(tmp_path)!r}), "")["num_updates"] == 20
    """)

    assert loaded & {"torch", "torchvision", "scipy.stats", "sklearn", "matplotlib"} == set()
    assert {world, "pyarrow"} <= loaded
    assert ("simpy" in loaded) == (world == "hetsim.sim.world")


@pytest.mark.slow
def test_the_command_imports_neither_a_world_nor_a_launcher_before_it_needs_one():
    """So `hetsim --help`, and a run of the other world, do not wait for them."""
    loaded = modules_after("import hetsim.cli.main")

    assert loaded & {"hetsim.sim.backend", "hetsim.distributed.backend", "hetsim.config.build", "simpy", "joblib", "submitit"} == set()


@pytest.mark.slow
def test_an_experiment_is_checked_before_torch_is_imported():
    """Building one for real images and a real optimizer imports no torch; loading it would."""
    loaded = modules_after("""
        from hydra import compose, initialize_config_dir
        from hetsim.config.build import build_experiment
        from hetsim.config.compose import entries_of
        from hetsim.trust.shipped import configs
        with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
            config = compose("config", overrides=["method=ssgd", "workload=digits", "optimizer=adam"])
        build_experiment(entries_of(config))
    """)

    assert loaded & {"torch", "torchvision", "scipy.stats", "sklearn", "matplotlib", "pyarrow"} == set()


@pytest.mark.slow
def test_a_script_with_a_team_imports_no_more_than_torch():
    """No config system, no simulator and no pictures."""
    loaded = modules_after("from hetsim import Team")

    assert loaded & {"hydra", "omegaconf", "simpy", "matplotlib", "scipy", "sklearn", "pyarrow"} == set()
    assert {name for name in loaded if name.startswith(("hetsim.sim", "hetsim.cli", "hetsim.results"))} == set()
    assert {"torch", "hetsim.loop"} <= loaded


def test_the_linter_reads_every_file_of_the_package() -> None:
    """A room whose name is on ruff's own list of what to leave out would not be checked."""
    root = Path(__file__).parents[1]
    listed = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--show-files", "hetsim"], cwd=root, capture_output=True, text=True, check=True
    )

    assert {Path(line) for line in listed.stdout.splitlines()} == set((root / "hetsim").rglob("*.py"))
