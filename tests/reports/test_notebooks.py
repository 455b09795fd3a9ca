"""What notebooks show, and what they write: keyword arguments and mappings instead of words, reports, data frames."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hetsim
from hetsim.answers.answer import Answer, Sheet
from hetsim.api import Search
from hetsim.config.typed import words_for
from hetsim.runtime.recording import progress as bars

SHORT: dict[str, Any] = {"workload": "quadratic", "budget": {"epochs": None, "updates": 3}, "pictures": False}


def test_keys_and_mappings_are_words() -> None:
    """A mapping names the keys below its key, and only those."""
    assert words_for({"method": "dbs_sgd", "seed": 1, "pictures": False}) == ["method=dbs_sgd", "seed=1", "pictures=false"]
    assert words_for({"cluster": {"network": {"latency_seconds": 0.5}, "nodes": [{"count": 2}]}}) == [
        "++cluster.network.latency_seconds=0.5",
        "++cluster.nodes=[{count:2}]",
    ]


@pytest.mark.slow
def test_a_run_takes_keys_and_a_cluster_as_a_mapping_and_is_shown_as_its_report(tmp_path: Path) -> None:
    """The report is escaped; without its files there is only the text."""
    nodes = [
        {"count": 2, "seconds_per_sample": "1 ms", "overhead_seconds": 0},
        {"count": 1, "seconds_per_sample": "4 ms", "overhead_seconds": 0},
    ]

    run = hetsim.run(method="ssgd", cluster={"name": "lab", "nodes": nodes}, folder=tmp_path / "run", **SHORT)

    assert (run.summary["cluster"], run.summary["num_workers"], run.summary["num_updates"]) == ("lab", 3, 3)
    shown, compared = run._repr_html_(), hetsim.compare(run, run)._repr_html_()
    assert shown is not None
    assert compared is not None
    assert "How does ssgd train quadratic on lab?" in shown
    assert "<svg" in shown
    assert "Where the time went" in compared
    shutil.rmtree(run.folder)
    assert run._repr_html_() is None


def test_a_search_is_shown_with_its_trials(tmp_path: Path) -> None:
    """Escaped, as values are a user's. A terminal shows the best one only."""
    trials = Sheet("Trials", ("number", "method"), [("0", "<b>")], max_printed=0)
    found = Search(Answer(question="Which?", answer=["best seconds: 1"], sheets=[trials]), tmp_path, 1.0, ())

    shown = found._repr_html_()

    assert repr(found) == "best seconds: 1"

    assert shown is not None
    assert "best seconds: 1" in shown
    assert "<td>&lt;b&gt;</td>" in shown


def test_a_data_frame_needs_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says so."""
    run = hetsim.run(method="ssgd", folder=tmp_path / "run", **SHORT)
    if importlib.util.find_spec("pandas") is not None:
        assert list(run.to_pandas()["train_loss"]) == run.curve()["train_loss"].to_pylist()
        assert len(hetsim.table([run]).to_pandas()) == 1

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(ValueError, match=r"^to_pandas needs the package pandas: pip install pandas$"):
        run.to_pandas()


def test_figures_are_shown_as_pictures(tmp_path: Path) -> None:
    """By themselves: Jupyter shows figures only if something has imported pyplot."""
    run = hetsim.run(method="ssgd", folder=tmp_path / "run", **SHORT)

    for figure in (run.timeline(), hetsim.table([run]).picture()):
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_bar_is_shown_on_a_terminal_and_in_a_notebook_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a notebook after half a second, so that short runs show none. IPython's own shell is a terminal."""
    assert bars.bar(total=2) is None
    for config, shown in (({"IPKernelApp": {}}, True), ({}, False)):
        shell = SimpleNamespace(config=config)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        found = bars.bar(total=2)

        assert (found is not None) == shown
        if found is not None:
            found.update(1)
            assert capsys.readouterr().err == ""
            monkeypatch.setattr(found, "delay", 0)
            found.update(1)
            found.refresh()
            assert "2/2" in capsys.readouterr().err
            found.close()
