"""What torchrun tells the processes that it starts, and what they tell it. Nothing here imports torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path


def under_torchrun() -> bool:
    """Whether torchrun started the processes, and set each one's rank in its environment."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def leave_reason(sentence: str) -> None:
    """Write why this process fails to the file that torchrun gave it, whose message stands in torchrun's own report at the end.

    The form is that of torch.distributed.elastic.multiprocessing.errors.ErrorHandler.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        message = {"message": sentence, "extraInfo": {"timestamp": str(int(time.time()))}}
        with contextlib.suppress(OSError):  # the sentence is on standard error, too
            Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")


def first_to_refuse(sentence: str) -> bool:
    """Whether no other process that torchrun started on this host has refused the run with this sentence.

    Torchrun ends all processes when one has failed, so none of them can be trusted to live long enough to say it for all.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or not under_torchrun():
        return True
    mark = f"refused-{hashlib.sha256(sentence.encode()).hexdigest()[:12]}"
    try:
        (Path(path).parents[1] / mark).touch(exist_ok=False)  # the folder of all ranks' folders
    except FileExistsError:
        return False
    except OSError:
        return True
    return True
