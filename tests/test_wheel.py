"""The wheel is the whole program: built, installed outside of the repository, and run there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEPENDENCIES = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
QUICK = ("workload=phantom", "workload.num_parameters=1000", "budget.epochs=null", "budget.updates=3", "pictures=false")
REAL = ("backend=dist", "workload=digits", "budget.epochs=null", "budget.updates=3", "pictures=false")

pytestmark = pytest.mark.slow


def ran(*command: object, cwd: Path) -> str:
    """What a command writes, in an environment that knows nothing of the repository."""
    known = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "PYTEST", "COV"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=known, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel in it, and the dependencies of the one that runs the tests: nothing is downloaded."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.fail("hatchling builds the wheel and is not installed: pip install --editable '.[dev]'")
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
    ran(sys.executable, "-m", "pip", "wheel", *offline, "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("hetsim-*.whl")
    place = folder / "environment"
    ran(sys.executable, "-m", "venv", "--without-pip", place, cwd=folder)
    ran(sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", *offline, wheel, cwd=folder)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in DEPENDENCIES), encoding="utf-8")
    return place


def test_the_wheel_brings_the_package_and_its_configs(environment: Path, tmp_path: Path) -> None:
    """Both are found where the wheel was installed, not in the repository; the configs are those of the repository, all of them."""
    script = "import hetsim; from hetsim.trust.shipped import configs; print(hetsim.__file__); print(configs())"
    package, configs = map(Path, ran(environment / "bin" / "python", "-c", script, cwd=tmp_path).split())

    assert package.is_relative_to(environment)
    assert configs == package.parent / "conf"
    shipped = {path.relative_to(ROOT / "conf"): path.read_bytes() for path in (ROOT / "conf").rglob("*.yaml")}
    assert {path.relative_to(configs): path.read_bytes() for path in configs.rglob("*.yaml")} == shipped
    text = Path("workloads/data/sonnets.txt")
    assert (package.parent / text).read_bytes() == (ROOT / "hetsim" / text).read_bytes()
    assert {path.name for path in (environment / "bin").glob("hetsim*")} == {
        "hetsim",
        "hetsim-advise",
        "hetsim-calibrate",
        "hetsim-catalogue",
        "hetsim-compare",
        "hetsim-ddp-check",
        "hetsim-launch",
        "hetsim-methods",
        "hetsim-report",
        "hetsim-search",
        "hetsim-stragglers",
        "hetsim-table",
    }


@pytest.mark.parametrize("typed", [pytest.param(QUICK, marks=pytest.mark.long), REAL], ids=["simulated", "in real processes"])
def test_the_installed_wheel_runs(environment: Path, tmp_path: Path, typed: tuple[str, ...]) -> None:
    """A simulation, and a run in real processes, each from a folder outside of the repository."""
    ran(environment / "bin" / "python", "-m", "hetsim", *typed, "hydra.run.dir=run", cwd=tmp_path)

    assert '"num_updates": 3' in (tmp_path / "run" / "summary.json").read_text(encoding="utf-8")
