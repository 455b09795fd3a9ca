"""The keys of a config that change no number of a run."""

from __future__ import annotations

CHANGE_NO_FILE = ("objective", "download")
"""Keys that change no file of a run. They are not part of its identity: a run with another value of them is the same run."""

CHANGE_NO_NUMBER = (*CHANGE_NO_FILE, "trace", "pictures", "data_root", "trust")
"""Keys that change no number of a run. Some change which files it leaves, or where its data and its code are found."""

VARY_IN_A_ROW = (*CHANGE_NO_NUMBER, "seed")
"""Keys in which the runs of one row of `hetsim-table` may differ: a row is a mean over seeds."""

VARY_IN_A_COMPARISON = (*CHANGE_NO_NUMBER, "backend", "evaluate_every_epochs")
"""Keys whose differences `hetsim-compare` does not report. It compares backends, and of the evaluations only the last."""
