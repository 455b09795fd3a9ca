"""The command `hetsim`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hetsim.cli.errors import USERS, _tell, _verbose, sentence
from hetsim.cli.job import _app, failures
from hetsim.cli.launcher import AGAIN, Sweep
from hetsim.errors import RunFailed


def main() -> None:
    """The command `hetsim`: one sentence and exit status 1 for what a user can mend, 130 after Ctrl-C."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here, where they become sentences
    sys.argv[1:] = options_first(sys.argv[1:])
    runs = Sweep()
    try:
        with runs.watched():
            _app()
    except KeyboardInterrupt:
        print(f"hetsim: interrupted{'' if runs.folder is None else f': add hydra.sweep.dir={runs.folder} to go on'}", file=sys.stderr)
        sys.exit(130)
    except USERS as error:
        if _verbose():
            raise
        _tell(error)
        sys.exit(1)
    except Exception as error:
        if runs.folder is None or _verbose():
            raise
        _tell(RunFailed(f"the sweep broke off ({type(error).__name__}: {sentence(error)}): {AGAIN}; hydra.verbose=true tells more"))
        sys.exit(1)
    sys.exit(0 if runs.close() and not failures else 1)


WITH_VALUE = (
    *("--cfg", "-c", "--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--package", "-p", "--experimental-rerun"),
)


def options_first(arguments: Sequence[str]) -> list[str]:
    """What Hydra takes: its options, and behind them what is typed for the config."""
    options, typed, left = [], [], list(arguments)
    while left:
        argument = left.pop(0)
        if not argument.startswith("-"):
            typed.append(argument)
            continue
        options.append(argument)
        if left and (argument in WITH_VALUE or (argument in ("--info", "-i") and "=" not in left[0])):
            options.append(left.pop(0))
    return options + typed
