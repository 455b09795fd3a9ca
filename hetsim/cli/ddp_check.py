"""The command `hetsim-ddp-check SCRIPT …`: are the weighted gradients of this script those of one process?"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetsim.checks import printable
from hetsim.cli.command import command
from hetsim.runtime.output import outlive_readers

ABOUT = """Run a training script that has a hetsim.ddp.Team with uneven shares up to its first step, in several processes and then in one on
the same global batch from the same start, by torchrun. Prints how far the weighted gradients are from those of the one, and how
far plain averaging would be; exit status 1 if the weighted ones are wrong, or cannot be told from plain averages. The script writes
what it writes before the second step."""
CAUSES = "dropout, batch norm over each rank's own samples, samples that are changed at random, a loss that is no mean over the samples"
REMEDIES = "take a smaller batch or samples that differ more, or compute in a higher precision"
MARGIN = 10
"""How many times as far as the weighted gradients plain averages must be from the serial ones for a check to tell them apart."""
MAX_LINES = 20
"""Lines of a script's that failed which are shown."""


def main() -> None:
    """Print both errors; exit status 1 with one sentence if they cannot be had."""
    outlive_readers()
    parser = argparse.ArgumentParser(prog="hetsim-ddp-check", description=ABOUT)
    parser.add_argument("--processes", type=int, default=3, metavar="N", help="how many processes share the batch (3)")
    parser.add_argument("script", help="the script, and its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…")
    arguments = parser.parse_args()
    with command(parser.prog):
        if not 2 <= arguments.processes <= 64:
            raise ValueError(f"--processes must be from 2 to 64, not {arguments.processes}")
        if not Path(arguments.script).is_file():
            raise ValueError(f"there is no script {arguments.script}: give the file that torchrun runs")
        with tempfile.TemporaryDirectory(prefix="hetsim-ddp-check-") as folder:
            for processes in (arguments.processes, 1):
                run(processes, [arguments.script, *arguments.arguments], Path(folder))
            said, right = verdict(Path(folder))
        print(said)
        sys.exit(0 if right else 1)


def run(processes: int, script: Sequence[str], folder: Path) -> None:
    """Run the script by torchrun; ValueError with one sentence, after its last lines, if it fails or has no step of a Team."""
    from hetsim.ddp.check import SERIAL, VARIABLE, WEIGHTED

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    known = os.environ | {VARIABLE: str(folder), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run([*torchrun, *script], env=known, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        for line in text.splitlines()[-MAX_LINES:]:
            print(printable(line), file=sys.stderr)
        raise ValueError(f"{script[0]} failed in {processes} process{'es' if processes > 1 else ''}: its last lines are above")
    if not (folder / (WEIGHTED if processes > 1 else SERIAL)).is_file():
        raise ValueError(f"{script[0]} has ended without a step of a model that a hetsim.ddp.Team wraps: call team.wrap(DDP(model))")


def verdict(folder: Path) -> tuple[str, bool]:
    """What both runs left, in words, and whether the weighted gradients are right."""
    import torch

    from hetsim.ddp.check import SERIAL, WEIGHTED, distance

    weighted, serial = (torch.load(folder / name, weights_only=True) for name in (WEIGHTED, SERIAL))
    right: dict[str, Any] = serial["reduced"]
    if weighted["reduced"].keys() != right.keys():
        raise ValueError("the model of several processes has other parameters than that of one: build it in the same way in each")
    error, plain = distance(weighted["reduced"], right), distance(weighted["plain"], right)
    epsilon = max(weighted["epsilon"], serial["epsilon"])
    shares = weighted["shares"]
    told_apart = plain > max(epsilon, MARGIN * error)
    if error > epsilon**0.5:
        conclusion = f"the gradients are not those of one process; causes that no weight mends: {CAUSES}"
    elif told_apart:
        conclusion = "the gradients are right"
    else:
        conclusion = f"this proves nothing, as plain averaging would pass too: {REMEDIES}"
    lines = [
        f"{len(shares)} processes with {', '.join(map(str, shares))} samples, and one with all {sum(shares)}; {len(right)} parameters:",
        f"  weighted gradients differ from the serial ones by {error:.2g} (relative; a rounding is {epsilon:.2g})",
        f"  plain averaging of the same batches would differ by {plain:.2g}",
        conclusion,
    ]
    return "\n".join(lines), error <= epsilon**0.5 and told_apart


if __name__ == "__main__":
    main()
