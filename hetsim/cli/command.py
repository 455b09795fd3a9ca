"""What the commands do with an error: one printable line on standard error, and an exit status."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from hetsim.checks import one_line

READING = (OSError, RecursionError, ValueError)
"""The errors of who reads the runs of a folder."""


@contextlib.contextmanager
def command(
    name: str,
    errors: tuple[type[BaseException], ...] = (ValueError,),
    sentence: Callable[[BaseException], str | None] = str,
    *,
    interrupted: str = "interrupted",
) -> Iterator[Callable[[str], None]]:
    """Exit with status 1 and a sentence after one of these errors, with 130 after Ctrl-C. Yields what prints a line on standard error.

    No sentence is printed if `sentence` returns None. What a line quotes may be a stranger's, who could steer the terminal.
    """

    def tell(message: str) -> None:
        print(f"{name}: {one_line(message)}", file=sys.stderr, flush=True)

    try:
        yield tell
    except KeyboardInterrupt:
        tell(interrupted)
        sys.exit(130)
    except errors as error:
        if (text := sentence(error)) is not None:
            tell(f"error: {text}")
        sys.exit(1)


def of_reading(error: BaseException, *, too_deep: str) -> str:
    """The sentence of an error of `READING`; `too_deep` is that of folders nested too deeply."""
    if isinstance(error, OSError):
        return f"{error.filename} cannot be read or written ({error.strerror}): give another folder"
    return too_deep if isinstance(error, RecursionError) else str(error)
