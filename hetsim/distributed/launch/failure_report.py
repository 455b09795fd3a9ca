"""Failures that a run's processes report to torchrun or hetsim-launch, and stop requests to these. This module does not import torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from hetsim.distributed.environment import WATCH, is_launched
from hetsim.files.writing import write_text
from hetsim.runtime.checkpointing import StopRequest

ENDED = 143
"""The exit status after SIGTERM of a launcher whose run saves no checkpoints."""
CAUSE, CONSEQUENCE = 0, 3
"""Orders of failures. A lower order is nearer to the cause of the run's end. Other failures are between these two."""


class Failure(NamedTuple):
    """The reason of a failure. A lower order is nearer to the cause."""

    order: int
    sentence: str


def leave_reason(sentence: str, *, order: int = 1) -> bool:
    """Write the reason of this process's failure to torchrun's file. torchrun's own report at the end contains it.

    The format is that of torch.distributed.elastic.multiprocessing.errors.ErrorHandler. Returns whether this is enough. hetsim-launch
    prints the reason with the lowest order of all processes.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        message = {"message": sentence, "extraInfo": {"timestamp": str(int(time.time())), "order": order}}
        with contextlib.suppress(OSError):
            write_text(Path(path), json.dumps({"message": message}))
            return WATCH in os.environ
    return False


def first_to_refuse(sentence: str) -> bool:
    """Whether no other torchrun process on this host has refused the run with this sentence.

    Torchrun ends all processes after one failure, so no single process lives reliably long enough to report for all.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or not is_launched():
        return True
    mark = f"refused-{hashlib.sha256(sentence.encode()).hexdigest()[:12]}"
    try:
        (Path(path).parents[1] / mark).touch(exist_ok=False)  # the folder of all ranks' folders
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


class LauncherStop(StopRequest):
    """A stop request to a launcher. It is passed to the launcher's processes, or ends the launcher if there are none yet."""

    running = False

    def ask(self) -> None:
        """Request a stop, as a signal's handler does."""
        super().ask()
        if not self.running:
            sys.exit(ENDED)
