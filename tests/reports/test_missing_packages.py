"""A report that needs a package says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hetsim.reports import perfetto


def test_a_trace_without_the_package_perfetto_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a run is read."""
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)

    with pytest.raises(ValueError, match=r"^a Perfetto trace needs the package perfetto: pip install 'hetsim\[perfetto\]'$"):
        perfetto.check_file(tmp_path / "out.pftrace", "hetsim-report")
