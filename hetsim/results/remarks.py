"""What a user should be told about a finished run: in its summary's `warnings`, and on the terminal."""

from __future__ import annotations

import math

from hetsim.runtime.outcome import Outcome


def remarks(outcome: Outcome) -> list[str]:
    """One sentence for each."""
    found = (_divergence(outcome), outcome.experiment.coordination.remark(outcome.last))
    return [remark for remark in found if remark is not None]


def diverged(outcome: Outcome) -> bool:
    """Whether the training diverged: by the losses that were reported with the gradients, or by the final one."""
    return _reason(outcome) is not None


def _reason(outcome: Outcome) -> str | None:
    final = outcome.points[-1].evaluation.train_loss
    not_finite = final is not None and not math.isfinite(final)
    return outcome.divergence.reason or ("its final loss is not finite" if not_finite else None)


def _divergence(outcome: Outcome) -> str | None:
    reason = _reason(outcome)
    if reason is None:
        return None
    stopped = outcome.experiment.stop_when_diverged and outcome.divergence.version == outcome.last.version
    return f"the training diverged: {reason}{', where the run was stopped' if stopped else ''}; try a lower learning_rate"
