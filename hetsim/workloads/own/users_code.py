"""Convert errors in a user's own code to one sentence, with the file and the line."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from types import TracebackType

from hetsim.checks import MAX_SHOWN
from hetsim.memory import out_of_memory


class UsersError(ValueError):
    """A sentence about an error in a user's own code."""

    @classmethod
    def of(cls, function: str, problem: str) -> UsersError:
        """The sentence for this workload, such as mymodel:build."""
        return cls(f"workload.module={function}: {problem}")


@contextlib.contextmanager
def users_code(function: str, part: str) -> Iterator[None]:
    """Within this context, an error becomes a UsersError that contains the failed part and the place. The traceback is its note.

    `function` names the workload, as mymodel:build. Lack of memory is reported elsewhere.
    """
    try:
        yield
    except UsersError:
        raise
    except (Exception, SystemExit) as error:
        if out_of_memory(error) is not None:
            raise
        refused = UsersError.of(function, f"{part} failed with {reason(error)}{_place(error.__traceback__, function)}: correct it")
        refused.add_note("".join(traceback.format_exception(error)))  # it survives the way between processes
        raise refused from None


def reason(error: BaseException) -> str:
    """An error's class, and the first line of its message."""
    message = (str(error).splitlines() or [""])[0]
    return type(error).__name__ + (f": {message[:MAX_SHOWN]}" if message else "")


def _place(trace: TracebackType | None, function: str) -> str:
    """The innermost line of the user's own package in a traceback; empty if it contains none."""
    package = function.partition(":")[0].split(".")[0]
    place = ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__"))
        if name.split(".")[0] == package:
            place = f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place
