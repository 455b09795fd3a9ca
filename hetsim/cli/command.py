"""The common parts of the commands: `--version`, and errors as one printable line on standard error with an exit status."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from hetsim.checks import one_line
from hetsim.cli.ending import raise_at_signals, said, status
from hetsim.runtime.output import discard_output
from hetsim.version import __version__

READING = (OSError, RecursionError, ValueError)
"""The errors of reading the runs of a folder."""

ENGINE = "local (the default): processes on this machine; ray: processes on a Ray cluster (RAY_ADDRESS), or on Ray on this machine"
"""The help of `--engine`."""


class Parser(argparse.ArgumentParser):
    """The arguments of a command, and `--version`. Invalid arguments give one sentence and exit status 2."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog=prog, **options)
        self.add_argument("--version", action="version", version=f"{prog} {__version__}", help="print the version of hetsim and exit")

    def error(self, message: str) -> NoReturn:
        """Print the error without argparse's usage, which has up to twenty lines."""
        self.exit(2, f"{self.prog}: error: {one_line(message)}: {self.prog} --help lists the arguments\n")


def seconds(text: str) -> float:
    """An option's time, with a unit or in seconds."""
    with contextlib.suppress(ValueError):
        return float(text)
    from hetsim.cluster.quantities import SECONDS  # with NumPy, which --help does not need

    try:
        return float(SECONDS.read("it", text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def minutes(text: str) -> float:
    """An option's time, with a unit or in minutes."""
    with contextlib.suppress(ValueError):
        return float(text)
    return seconds(text) / 60


@contextlib.contextmanager
def command(
    name: str,
    errors: tuple[type[BaseException], ...] = (ValueError,),
    sentence: Callable[[BaseException], str | None] = str,
    *,
    again: str = "",
) -> Iterator[Callable[[str], None]]:
    """Exit with status 1 and a sentence after these errors, with 128 + n after signal n. Yields a function that prints a line on stderr.

    If `sentence` returns None, no sentence is printed. `again` is the sentence after a signal: how to continue. Lines contain no control
    characters, because quoted text may come from somebody else.
    """
    raise_at_signals()

    def tell(message: str) -> None:
        print(f"{name}: {one_line(message)}", file=sys.stderr, flush=True)

    try:
        try:
            yield tell
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # it may wait for a reader, whom a signal need not wait for
    except KeyboardInterrupt as signalled:
        discard_output()
        tell(said(signalled) + again)
        sys.exit(status(signalled))
    except errors as error:
        if (text := sentence(error)) is not None:
            tell(f"error: {text}")
        sys.exit(1)


def typed(name: str) -> str:
    """The command as it was typed, in one printable line."""
    return one_line(shlex.join([name, *sys.argv[1:]]))


def of_reading(error: BaseException, *, too_deep: str) -> str:
    """The sentence of an error in `READING`. `too_deep` is the sentence for folders nested too deeply."""
    if isinstance(error, OSError):
        return f"{error.filename} cannot be read or written ({error.strerror}): give another folder"
    return too_deep if isinstance(error, RecursionError) else str(error)
