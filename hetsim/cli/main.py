"""The command `hetsim`."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from hetsim.checks import one_line
from hetsim.cli.command import command
from hetsim.cli.ending import LAUNCHED, raise_at_signals, said
from hetsim.cli.ending import status as ended
from hetsim.config.arguments import check_options, config_dir, idle_word, options_first, verbose, without_control_characters
from hetsim.config.completion import completion
from hetsim.config.errors import USERS, report, show_traceback, tell_stopped
from hetsim.config.guard.folders import check_folder
from hetsim.config.typed_files import with_files
from hetsim.distributed.environment import GOES_ON, WATCH, is_launched
from hetsim.distributed.launch.failure_report import leave_reason
from hetsim.distributed.rank.cleanup import follow_launcher
from hetsim.errors import RunFailed, RunStopped
from hetsim.memory import out_of_memory
from hetsim.runtime.checkpointing import STOPPED
from hetsim.runtime.output import discard_output, has_failed, outlive_readers
from hetsim.sweeps import job
from hetsim.sweeps.launchers import own_plugins
from hetsim.sweeps.record import RESUME, Refused, SweepRecord, launch_failure
from hetsim.sweeps.task import run_by_hydra
from hetsim.version import __version__


def main() -> None:
    """Run the typed command. Exits with status 0 if every run succeeded, 1 after an error, 128 + n after signal n."""
    outlive_readers("hetsim", leave=leave_reason if WATCH in os.environ else None)
    if "--version" in sys.argv[1:]:  # Hydra would print its own
        print(f"hetsim {__version__}")
        sys.exit(0)
    if sys.argv[1:2] == ["completion"]:
        with command("hetsim"):
            print(completion(sys.argv[2:]), end="")
        sys.exit(0)
    raise_at_signals()
    follow_launcher()
    if LAUNCHED & os.environ.keys():  # a launcher may end this rank at any time: import before Hydra makes the run's folder
        import hetsim.config.start  # noqa: F401
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them; they are reported here
    job.failures.clear()
    sys.argv[1:] = options_first(sys.argv[1:])
    try:
        check_options(sys.argv[1:])
        check_folder("the current folder", Path.cwd())
        sys.argv[1:] = with_files(sys.argv[1:], config_dir(sys.argv[1:]), of_option=True)
        with own_plugins(), _own_warnings(), without_control_characters(sys.argv[1:]):
            run_by_hydra()
        sweep = SweepRecord.current
        status = 0 if not job.failures and (sweep is None or sweep.report()) else 1
    except Refused as refused:
        report(refused.error)
        sys.exit(1)
    except RunStopped as stopped:
        tell_stopped(stopped)
        status = STOPPED
    except KeyboardInterrupt as signalled:
        discard_output()
        if SweepRecord.current is not None:
            SweepRecord.current.remove_unfinished()
        print(f"hetsim: {said(signalled)}{_resume(SweepRecord.current)}", file=sys.stderr)
        sys.exit(ended(signalled))
    except Exception as error:
        short = out_of_memory(error)
        failure = RunFailed(short) if short else error if isinstance(error, USERS) else None
        if failure is None and SweepRecord.current is not None:
            failure = launch_failure(error)
        if failure is None or verbose(sys.argv):
            show_traceback()
        else:
            report(failure)
        sys.exit(1)
    finally:
        if SweepRecord.current is not None:
            SweepRecord.current.close()
    if status == 0 and not is_launched() and (word := idle_word(sys.argv[1:])):
        print(f"hetsim: warning: {one_line(word)} does nothing {'with' if word.startswith('hydra.run') else 'without'} -m", file=sys.stderr)
    _exit(status)


def _exit(status: int) -> NoReturn:
    """End a rank's process at once, because Python's own exit stops threads that wait in the network, and C++ then aborts."""
    if is_launched() and "torch.distributed" in sys.modules and (status == 1 or os.environ.get(GOES_ON) == "1"):
        status = status or int(has_failed())
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


@contextlib.contextmanager
def _own_warnings() -> Iterator[None]:
    """Within this context, a Python warning is printed as one line."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"hetsim: warning: {one_line(str(message))}", file=sys.stderr)
        yield


def _resume(sweep: SweepRecord | None) -> str:
    return "" if sweep is None else f": {RESUME.format(folder=shlex.quote(str(sweep.folder)))}"
