"""What every method does on phantoms is what it did before the layout of 0.2: hashes of its traces, summaries and last weights."""

from __future__ import annotations

import json

import pytest
from golden.record import METHODS, PHANTOMS, recorded

GOLDEN: dict[str, dict[str, str]] = json.loads(PHANTOMS.read_text(encoding="utf-8"))

RECORDED = sorted({run.split()[1] for run in GOLDEN})
"""The methods that there were then; later ones are under the laws of every method alone."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", RECORDED)
@pytest.mark.sampled(13)
def test_a_method_does_what_it_did(method: str) -> None:
    """On three clusters, one of them with noise and faults, event by event and in lockstep.

    A change that is meant is recorded anew, by tests/golden/record.py, and stands in the CHANGELOG.
    """
    before = {run: its for run, its in GOLDEN.items() if run.split()[1] == method}

    now = recorded(training=False, methods=[method])

    changed = {
        run: [part for part in ("trace", "summary", "weights", "updates") if before.get(run, {}).get(part) != now.get(run, {}).get(part)]
        for run in sorted({*before, *now})
    }
    assert len(before) >= 3
    assert {run: parts for run, parts in changed.items() if parts} == {}


def test_every_recorded_run_is_held() -> None:
    """By the test above: each is of a method that is shipped."""
    assert set(RECORDED) <= set(METHODS)
