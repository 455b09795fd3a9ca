"""What the processes of a run tell torchrun, or hetsim-launch, which started them. Nothing here imports torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

from hetsim.distributed.environment import WATCH, is_launched
from hetsim.runtime.files import write_text

CAUSE, CONSEQUENCE = 0, 3
"""Orders of reasons: the lower, the nearer to the cause of the run's end. What is neither is between them."""


class Failure(NamedTuple):
    """Why processes failed. The lower the order, the nearer to the cause."""

    order: int
    sentence: str


def leave_reason(sentence: str, *, order: int = 1) -> bool:
    """Write why this process fails to the file that torchrun gave it, whose message stands in torchrun's own report at the end.

    The form is that of torch.distributed.elastic.multiprocessing.errors.ErrorHandler. Returns whether that is enough: of all processes'
    reasons, hetsim-launch prints the one with the lowest order.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        message = {"message": sentence, "extraInfo": {"timestamp": str(int(time.time())), "order": order}}
        with contextlib.suppress(OSError):
            write_text(Path(path), json.dumps({"message": message}))
            return WATCH in os.environ
    return False


def first_to_refuse(sentence: str) -> bool:
    """Whether no other process that torchrun started on this host has refused the run with this sentence.

    Torchrun ends all processes when one has failed, so none of them can be trusted to live long enough to say it for all.
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
