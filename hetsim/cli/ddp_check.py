"""The command `hetsim-ddp-check SCRIPT …`: are this script's weighted gradients those of one process?"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetsim.checks import printable
from hetsim.cli.command import Parser, command
from hetsim.files.temporary import temporary_folder
from hetsim.runtime.output import outlive_readers

ABOUT = """Verify the gradients of a training script with a hetsim.ddp.Team. hetsim runs the script with torchrun: first in several
processes, through a short epoch in which the uneven batch split changes twice, then in one process, from the same weights on the same
global batches. It prints how far the weighted gradients, and plain averages, are from the gradients of one process. The exit status is 1
if the weighted gradients are wrong, or if the check cannot tell. Your script runs for real, so it also writes its usual files."""
CAUSES = """dropout, batch norm over each rank's own samples, samples that are changed at random, a loss that is no mean over the samples, a
second loss over samples that are not the Team's""".replace("\n", " ")
SUM = "the loss is a sum over the samples, whose gradients add up: divide it by their number (reduction='mean')"
NORMALISED = "plain averages are right, as the loss is divided by a number of all ranks already: call team.wrap(model, loss='global')"
MEAN = "the loss is the mean over this rank's samples, and is divided by no number of all ranks: leave loss='global' out of team.wrap"
COPIED = (
    "in a step with fewer samples than ranks, a rank without one counts a copy of another rank's sample in the total: sum up "
    "team.own(number) instead of the number, or add drop_last=True to the loader"
)
REMEDIES = "take a smaller batch or samples that differ more, or compute in a higher precision"
MARGIN = 10
"""A check needs plain averages whose error is at least this many times the weighted gradients' error."""
MAX_LINES = 20
"""The maximum number of a failed script's last lines to print."""


def main() -> None:
    """Print both errors. Exits with status 1 and a sentence if they cannot be measured."""
    outlive_readers("hetsim-ddp-check")
    parser = Parser(prog="hetsim-ddp-check", description=ABOUT)
    parser.add_argument("--processes", type=int, default=3, metavar="N", help="the number of processes that share the batch (3)")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module instead of a file: -m package.train")
    parser.add_argument("script", help="your script, followed by its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…")
    arguments = parser.parse_args()
    script = ["-m"] * arguments.module + [arguments.script, *arguments.arguments]
    with command(parser.prog):
        if not 2 <= arguments.processes <= 64:
            raise ValueError(f"--processes must be from 2 to 64, not {arguments.processes}")
        if not arguments.module and not Path(arguments.script).is_file():
            raise ValueError(f"there is no script {arguments.script}: give the file that torchrun runs")
        with temporary_folder("hetsim-ddp-check-") as folder:
            for processes in (arguments.processes, 1):
                run(processes, script, folder)
            text, right = verdict(folder)
        print(text)
        sys.exit(0 if right else 1)


def run(processes: int, script: Sequence[str], folder: Path) -> None:
    """Run the script by torchrun. If it fails or has no step of a Team, raises ValueError and prints its last lines."""
    from hetsim.ddp.check import REFUSED, SERIAL, VARIABLE, WEIGHTED
    from hetsim.ddp.launched import PARENT

    python = [sys.executable, *["-E"] * sys.flags.ignore_environment, "-P", "-u", "-m", "hetsim.ddp.launched"]
    torchrun = [*python, "torchrun", "--standalone", f"--nproc-per-node={processes}", "--no-python", *python]
    environment = os.environ | {VARIABLE: str(folder), PARENT: str(os.getpid())}
    environment["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    environment["TMPDIR"] = str(folder)  # torchrun leaves files there if it is killed
    with subprocess.Popen([*torchrun, *script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        try:
            output, _ = running.communicate()
        except BaseException:
            running.terminate()  # it ends the processes that it has started, each the leader of a session
            raise
    text = output.decode(errors="replace")
    name = next(word for word in script if word != "-m")
    if (folder / REFUSED).is_file():
        raise ValueError(f"{name}: {(folder / REFUSED).read_text(encoding='utf-8')}")
    if running.returncode:
        printed, torchrun_said, _ = text.partition("failed (exitcode")
        lines = printed.splitlines()[:-1] if torchrun_said else printed.splitlines()
        for line in lines[-MAX_LINES:]:
            print(printable(line), file=sys.stderr)
        raise ValueError(f"{name} failed in {processes} process{'es' if processes > 1 else ''}: its last lines are above")
    if not (folder / (WEIGHTED if processes > 1 else SERIAL)).is_file():
        raise ValueError(f"{name} has ended without a step of a model that a hetsim.ddp.Team wraps: call team.wrap(DDP(model))")


def verdict(folder: Path) -> tuple[str, bool]:
    """The result of both runs in words, and whether the weighted gradients are right."""
    import torch

    from hetsim.ddp.check import SERIAL, WEIGHTED, distance

    weighted, serial = (torch.load(folder / name, weights_only=True) for name in (WEIGHTED, SERIAL))
    if len(weighted["steps"]) != len(serial["steps"]):
        raise ValueError(
            f"several processes made {len(weighted['steps'])} steps, and one made {len(serial['steps'])} with the same batches: "
            "let the number of steps not depend on the number of ranks"
        )
    errors, plain, by_samples, sums = [], [], [], []
    for step, alone in zip(weighted["steps"], serial["steps"], strict=True):
        right: dict[str, Any] = alone["reduced"]
        if step["reduced"].keys() != right.keys():
            raise ValueError("the model of several processes has other parameters than that of one: build it in the same way in each")
        errors.append(distance(step["reduced"], right))
        plain.append(distance(step["plain"], right))
        by_samples.append(distance(step["weighted"], right))
        sums.append(distance({name: len(step["shares"]) * part for name, part in step["plain"].items()}, right))
    epsilon = max(weighted["epsilon"], serial["epsilon"])
    bound = epsilon**0.5
    worst = next((place for place, error in enumerate(errors) if error > bound), max(range(len(errors)), key=errors.__getitem__))
    error = errors[worst]
    told_apart = max(*plain, *by_samples) > max(epsilon, MARGIN * error)
    if error > bound:
        conclusion = f"the gradients are not those of one process; causes that no weight mends: {CAUSES}"
        by_weight = COPIED if 0 in weighted["steps"][worst]["shares"] else MEAN
        remedies = [(plain, NORMALISED), (sums, SUM), *[(by_samples, by_weight)] * (weighted["steps"][worst]["loss"] == "global")]
        for others, remedy in remedies:
            if others[worst] <= bound and MARGIN * others[worst] < error:  # in later steps, wrong gradients have changed the weights
                conclusion = f"the gradients are not those of one process: {remedy}"
    elif told_apart:
        conclusion = "the gradients are right"
    else:
        conclusion = f"this proves nothing, because plain averaging would pass too: {REMEDIES}"
    splits = {step["number"]: tuple(step["shares"]) for step in weighted["steps"]}  # a step reduces the gradients of each model
    number = weighted["steps"][worst]["number"]
    of_first = next(iter(splits.values()))
    num_parameters = len({name for step in serial["steps"] for name in step["reduced"]})
    lines = [
        f"{len(splits)} steps of {len(of_first)} processes with {', '.join(map(str, of_first))} samples at first, and of one with all "
        f"{sum(of_first)}; {len(set(splits.values()))} splits, {num_parameters} parameters:",
        f"  weighted gradients differ from the serial ones by {error:.2g} in step {list(splits).index(number) + 1} "
        f"with {', '.join(map(str, splits[number]))} samples (relative; a rounding is {epsilon:.2g})",
        f"  plain averaging of the same batches would differ by {max(plain):.2g}",
        conclusion,
    ]
    return "\n".join(lines), error <= bound and told_apart


if __name__ == "__main__":
    main()
