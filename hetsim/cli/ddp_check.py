"""The command `hetsim-ddp-check SCRIPT …`: are the gradients of this script's processes those of one process on the whole batch?"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim.checks import printable
from hetsim.cli.command import Parser, command, minutes
from hetsim.files.temporary import temporary_folder
from hetsim.runtime.output import outlive_readers

if TYPE_CHECKING:
    from hetsim.gradcheck.verdict import Verdict

ABOUT = """Verify the gradients of any distributed training script: is the gradient that its processes step along that of the whole batch?
hetsim runs the first steps of the script with torchrun: in several processes, and then in one process, from the same weights on the same
samples, which its DataLoaders yield. It compares the gradients before each step of an optimizer, and prints what to change if they differ.
Dropout is off in both runs. The exit status is 1 if the gradients are wrong, or if the check cannot tell. Your script runs for real, so it
also writes its usual files. Under a hetsim.Team, all ranks get uneven shares, which change after each step."""
MAX_LINES = 20
"""The maximum number of a failed script's last lines to print."""
MAX_BYTES = 100_000
"""The maximum size of the end of its output that is read."""


def main() -> None:
    """Print whether the gradients are right, and exit with status 1 if they are not or if they cannot be compared."""
    outlive_readers("hetsim-ddp-check")
    parser = Parser(prog="hetsim-ddp-check", description=ABOUT)
    parser.add_argument("--processes", type=int, default=3, metavar="N", help="the number of processes that share the batch (3)")
    parser.add_argument("--minutes", type=minutes, default=10.0, metavar="M", help="the time limit of each run of the script (10)")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module instead of a file: -m package.train")
    parser.add_argument("script", help="your script, followed by its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…")
    arguments = parser.parse_args()
    script = ["-m"] * arguments.module + [arguments.script, *arguments.arguments]
    with command(parser.prog):
        if not 2 <= arguments.processes <= 64:
            raise ValueError(f"--processes must be from 2 to 64, not {arguments.processes}")
        if not arguments.minutes > 0:
            raise ValueError(f"--minutes must be positive, not {arguments.minutes:g}")
        if not arguments.module and not Path(arguments.script).is_file():
            raise ValueError(f"there is no script {arguments.script}: give the file that torchrun runs")
        with temporary_folder("hetsim-ddp-check-") as folder:
            result = check(Script(script, arguments.processes, arguments.minutes, folder))
        print(result.text)
        sys.exit(0 if result.right else 1)


@dataclass
class Script:
    """A script and its runs, each of which has a folder."""

    words: Sequence[str]
    processes: int
    minutes: float
    folder: Path

    def run(self, name: str, plan: dict[str, Any] | None = None, *, frozen: bool = False) -> list[dict[str, Any]]:
        """The records of each process: of several processes, or of one with a plan. Raises ValueError if there are none."""
        import torch

        from hetsim.gradcheck import watch

        folder = self.folder / name
        folder.mkdir()
        if plan is not None:
            torch.save(plan, folder / watch.PLAN)
        if frozen:
            (folder / watch.FROZEN).touch()
        size = self.processes if plan is None else 1
        self._start(folder, size)
        paths = [folder / f"{rank}.pt" for rank in range(size)]
        records = [torch.load(path, weights_only=True) for path in paths if path.is_file()]
        if len(records) < size or not all(record["steps"] for record in records):
            raise ValueError(
                f"{self.name} has ended without a step of an optimizer of torch.optim in {described(size)}: there is no gradient"
            )
        return records

    @property
    def name(self) -> str:
        """The file or module."""
        return next(word for word in self.words if word != "-m")

    def raise_refused(self, folder: Path) -> None:
        """Raise ValueError with the sentence of a process that has refused to go on."""
        from hetsim.gradcheck.turning import REFUSED

        if (folder / REFUSED).is_file():
            raise ValueError(f"{self.name}: {(folder / REFUSED).read_text(encoding='utf-8')}")

    def _start(self, folder: Path, size: int) -> None:
        """Run the script by torchrun. If it fails, raises ValueError and prints its last lines."""
        from hetsim.gradcheck.launched import PARENT
        from hetsim.gradcheck.turning import VARIABLE

        python = [sys.executable, *["-E"] * sys.flags.ignore_environment, "-P", "-u", "-m", "hetsim.gradcheck.launched"]
        torchrun = [*python, "torchrun", "--standalone", f"--nproc-per-node={size}", "--no-python", *python]
        environment = os.environ | {VARIABLE: str(folder), PARENT: str(os.getpid())}
        environment["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
        environment["TMPDIR"] = str(self.folder)  # torchrun leaves files there if it is killed
        output = folder / "output.txt"
        with (
            output.open("wb") as file,
            subprocess.Popen([*torchrun, *self.words], env=environment, stdout=file, stderr=subprocess.STDOUT) as running,
        ):
            status = None
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = running.wait(60 * self.minutes)
            finally:
                end = output.stat().st_size
                if status is None:
                    running.terminate()  # it ends the processes that it has started, each the leader of a session
        self.raise_refused(folder)
        if status == 0:
            return
        with output.open("rb") as printed_file:
            printed_file.seek(max(0, end - MAX_BYTES))
            text = printed_file.read(min(end, MAX_BYTES)).decode(errors="replace")
        printed, torchrun_said, _ = text.partition("failed (exitcode")
        lines = printed.splitlines()[:-1] if torchrun_said else printed.splitlines()
        for line in lines[-MAX_LINES:]:
            print(printable(line), file=sys.stderr)
        if status is None:
            raise ValueError(
                f"{self.name} has not made its first steps in {self.minutes:g} minutes in {described(size)}: give it smaller data, or the "
                "check more --minutes; its last lines are above"
            )
        alone = "; the check also needs it to run in one" if size == 1 else ""
        raise ValueError(f"{self.name} failed in {described(size)}: its last lines are above{alone}")


def described(processes: int) -> str:
    """The number of processes in words."""
    return f"{processes} process{'es' if processes > 1 else ''}"


def check(script: Script, prefix: str = "", *, frozen: bool = False) -> Verdict:
    """Run the script several times, and compare its gradients."""
    from hetsim.gradcheck.plan import plan
    from hetsim.gradcheck.verdict import FROZEN, Comparison, Verdict

    ranks = script.run(f"{prefix}ranks", frozen=frozen)
    comparison = Comparison(ranks)
    if (fault := comparison.fault()) is not None:
        return fault
    folder = str(script.folder / f"{prefix}ranks")
    (alone,) = script.run(f"{prefix}mixed", plan(ranks, folder=folder, mixed=True), frozen=frozen)
    result = comparison.verdict(alone)
    if not result.right and comparison.windows.size > 1:
        (ordered,) = script.run(f"{prefix}ordered", plan(ranks, folder=folder, mixed=False), frozen=frozen)
        result = comparison.verdict(alone, ordered)
    if not result.is_explained and not frozen:
        other = check(script, "frozen-", frozen=True)
        return Verdict(f"{result.text}\n{FROZEN}{other.text.splitlines()[-1]}", False)
    return result


if __name__ == "__main__":
    main()
