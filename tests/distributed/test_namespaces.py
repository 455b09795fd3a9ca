"""Several hosts for the system, too: network namespaces with shaped links, and clocks of their own where there are time namespaces."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "hosts.sh"


def reason_to_skip() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root: run it with sudo"
    lacking = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if lacking:
        return f"there is no {' and no '.join(lacking)}: install iproute2"
    tried = f"hetsim-test-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", tried], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", tried], capture_output=True, check=False)
    return f"this system makes no network namespace: {made.stderr.strip()}" if made.returncode else None


def hosts(*typed: str) -> subprocess.CompletedProcess[str]:
    """The script, to its end."""
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run([SCRIPT, *typed], env=environment, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.long
def test_three_hosts_train_over_shaped_links() -> None:
    """No update is faster than the links allow, clocks that are 1,000 s apart are aligned, and nothing is left."""
    if (why := reason_to_skip()) is not None:
        pytest.skip(why)
    before = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout

    done = hosts("--hosts", "3", "--mbit", "200", "--updates", "10")

    assert done.returncode == 0, done.stderr
    assert subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout == before
    rows = re.findall(r"^(ssgd|asgd) +([\d.]+) +[\d.]+ +([\d.]+) +\S+ +(one clock|3 clocks, to (\d+) µs)$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["ssgd", "asgd"], done.stdout
    for method, measured, _, _, error in rows:
        carried = {"ssgd": 4 / 3, "asgd": 1}[method] * 4e6  # bytes in one direction of the busiest link, in each update
        assert float(measured) > 0.9 * carried / 25e6
        assert not error or float(error) < 50_000


@pytest.mark.parametrize("typed", [("--hosts", "1"), ("--mbit", "fast"), ("--speed", "3"), ("--mbit",)])
def test_what_the_script_does_not_understand_is_one_sentence(typed: tuple[str, ...]) -> None:
    """Before it makes anything."""
    done = hosts(*typed)

    assert done.returncode == 2
    assert done.stderr.startswith("hosts.sh: ")
    assert done.stderr.count("\n") == 1
