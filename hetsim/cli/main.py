"""The command `hetsim`."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from hetsim.checks import one_line
from hetsim.cli.command import command
from hetsim.cli.ending import LAUNCHED, raise_at_signals, said
from hetsim.cli.ending import status as ended
from hetsim.config.arguments import asks_to_show, defaults, idle_word, read_arguments, repeated_key, show, verbose
from hetsim.config.errors import USERS, report, show_traceback, tell_stopped
from hetsim.distributed.environment import GOES_ON, WATCH, is_launched
from hetsim.distributed.launch.failure_report import leave_reason
from hetsim.distributed.rank.cleanup import follow_launcher
from hetsim.errors import RunFailed, RunStopped
from hetsim.memory import out_of_memory
from hetsim.runtime.checkpointing import STOPPED
from hetsim.runtime.output import discard_output, has_failed, outlive_readers
from hetsim.version import __version__

if TYPE_CHECKING:
    from hetsim.sweeps.sweep import Sweep


def main() -> None:
    """Run the typed command. Exits with status 0 if every run succeeded, 1 after an error, 128 + n after signal n."""
    outlive_readers("hetsim", leave=leave_reason if WATCH in os.environ else None)
    if "--version" in sys.argv[1:]:  # Hydra would print its own
        print(f"hetsim {__version__}")
        sys.exit(0)
    if sys.argv[1:2] == ["completion"]:
        from hetsim.cli.completion import completion

        with command("hetsim"):
            print(completion(sys.argv[2:]), end="")
        sys.exit(0)
    raise_at_signals()
    follow_launcher()
    if LAUNCHED & os.environ.keys():  # a launcher may end this rank at any time: import before the run makes its folder
        import hetsim.config.start  # noqa: F401
    sweep: Sweep | None = None
    status = 0
    try:
        typed = read_arguments(sys.argv[1:])
        words = typed.overrides
        with _own_warnings():
            if asks_to_show(typed):
                show(typed)
            elif typed.multirun:
                from hetsim.sweeps.sweep import Sweep

                sweep = Sweep(words, typed.config_dir, typed.config_name)
                status = 0 if _report(sweep) else 1
            else:
                from hetsim.sweeps.single import run_single

                if len(sys.argv) == 1:
                    print(f"hetsim: nothing is typed, so this is {defaults()}: 'hetsim --help' lists what to type", file=sys.stderr)
                outcome = run_single(words, config_dir=typed.config_dir, name=typed.config_name, verbose=verbose(words))
                status = 0 if outcome.failure is None else 1
        if status == 0 and not is_launched() and (key := repeated_key(words)):
            print(f"hetsim: warning: {one_line(key)} is given twice, and the last one counts: leave one out", file=sys.stderr)
        if status == 0 and not is_launched() and (word := idle_word(words, multirun=typed.multirun)):
            print(f"hetsim: warning: {one_line(word)} does nothing {'with' if typed.multirun else 'without'} -m", file=sys.stderr)
    except RunStopped as stopped:
        tell_stopped(stopped)
        status = STOPPED
    except KeyboardInterrupt as signalled:
        discard_output()
        again = ""
        if sweep is not None:
            sweep.remove_unfinished()
            again = f": add hydra.sweep.dir={shlex.quote(os.path.relpath(sweep.folder))} to resume"
        print(f"hetsim: {said(signalled)}{again}", file=sys.stderr)
        sys.exit(ended(signalled))
    except Exception as error:
        _report_error(error, sweep)
        sys.exit(1)
    _exit(status)


def _report(sweep: Sweep) -> bool:
    """Execute a sweep, and print how its runs ended. Returns whether all have succeeded."""
    from hetsim.sweeps.sweep import closing_line, failure_lines

    outcomes = sweep.run()
    print(closing_line(outcomes, os.path.relpath(sweep.folder)), flush=True)
    failures = failure_lines(outcomes)
    if failures:
        leave_reason(failures)
        print(failures, file=sys.stderr, flush=True)
    return not failures


def _report_error(error: Exception, sweep: Sweep | None) -> None:
    """Print an error as one sentence, or with its traceback if that was asked for, or if it is a fault of hetsim's."""
    short = out_of_memory(error)
    failure = RunFailed(short) if short else error if isinstance(error, USERS) else None
    if failure is None and sweep is not None:
        from hetsim.sweeps.sweep import launch_failure

        failure = launch_failure(error)
    if failure is None or verbose(sys.argv):
        show_traceback()
    else:
        report(failure)


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
        warnings.showwarning = lambda message, *_, **__: print(f"hetsim: warning: {one_line(str(message))}", file=sys.stderr, flush=True)
        yield
