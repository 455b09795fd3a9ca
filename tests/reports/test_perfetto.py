"""`hetsim-compare … --perfetto`: decoded, the file has every interval, message and number of both runs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from worlds import cluster, exit_status, experiment, node

from hetsim.cli.compare import main as compare_main
from hetsim.reports.perfetto import traced, write
from hetsim.results.writing.figures import lane_name
from hetsim.runtime.recording.recorder import APPLY, COMMIT, GRADIENT, MESSAGE, UPDATE
from hetsim.runtime.recording.trace import as_table
from hetsim.sim import Simulator

pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="the package perfetto is not installed")


def ran(folder: Path, method: str, **keys: Any) -> Path:
    """The folder of a short run on two nodes of 1 and 3 s a gradient, with links that take time."""
    made = cluster(node(1.0), node(3.0), network={"latency_seconds": 0.5, "bytes_per_second": 1e4}, seconds_per_update=0.25)
    keys = {"workload": {"num_parameters": 1000, "num_samples": 1000}, "trace": "full", "batch_size": 2, "pictures": False, **keys}
    Simulator().run(experiment(f"method={method}", "workload=phantom", cluster=made, budget={"updates": 8}, **keys), folder, "{}\n")
    return folder


class Decoded:
    """A trace: by process, rank's track and track, the intervals, moments and values of counters, in seconds."""

    def __init__(self, file: Path) -> None:
        trace = pb2.Trace()
        trace.ParseFromString(file.read_bytes())
        tracks = {packet.track_descriptor.uuid: packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")}
        self.processes = {track.process.pid: track.process.process_name for track in tracks.values() if track.HasField("process")}
        self.bars: dict[tuple[str, ...], list[Any]] = defaultdict(list)
        self.flows: dict[int, list[tuple[str, ...]]] = defaultdict(list)
        open_bars: dict[int, Any] = {}
        for packet in (packet for packet in trace.packet if packet.HasField("track_event")):
            event, at = packet.track_event, packet.timestamp / 1e9
            path, uuid = (), event.track_uuid
            while uuid:
                path, uuid = (tracks[uuid].name, *path), tracks[uuid].parent_uuid
            details = {note.name: note.int_value for note in event.debug_annotations}
            for flow in event.flow_ids:
                self.flows[flow].append(path[1:])
            if event.type == event.TYPE_SLICE_BEGIN:
                assert event.track_uuid not in open_bars  # bars of one track do not overlap
                open_bars[event.track_uuid] = at, event.name, details
            elif event.type == event.TYPE_SLICE_END:
                start, name, details = open_bars.pop(event.track_uuid)
                self.bars[path].append((start, at, name, details))
            else:
                assert event.type == event.TYPE_INSTANT or tracks[event.track_uuid].HasField("counter")
                self.bars[path].append((at, event.double_counter_value if event.type == event.TYPE_COUNTER else event.name))
        assert not open_bars

    def of(self, *path: str, process: int = 1) -> list[Any]:
        """What is on one track, in order."""
        return sorted(self.bars[(self.processes[process], *path)])


def test_a_trace_written_by_hand_is_what_perfetto_reads(tmp_path: Path) -> None:
    """One gradient, its message, the update, and the answer that the next gradient begins with."""
    rows = [
        (0, 1, 0, GRADIENT, 0, 4, 0, 0), (1, 1.5, 0, MESSAGE, 0, 0, 0, 80), (1.5, 2, 2, UPDATE, 0, 0, 0, 0), (2, 2, 0, APPLY, 1, 4, 1, 0),
        (2, 2, 2, COMMIT, 1, 4, 1, 0), (2, 2.5, 2, MESSAGE, 1, 0, 0, 80), (2.25, 2.75, 2, MESSAGE, 1, 0, 0, 80),
        (2.5, 4, 0, GRADIENT, 1, 5, 0, 0), (3, 4, 1, GRADIENT, 1, 3, 0, 0),
    ]  # fmt: skip
    folder = ran(tmp_path / "run", "asgd")
    parquet.write_table(as_table([number for row in rows for number in row]), folder / "trace.parquet")

    write(tmp_path / "out.pftrace", [traced(folder)], "hetsim-report")

    found = Decoded(tmp_path / "out.pftrace")
    assert found.processes == {1: "asgd on by hand, phantom (sim)"}
    assert [bar[:3] for bar in found.of("worker 0", "computing")] == [(0, 1, "gradient"), (2.5, 4, "gradient")]
    assert found.of("worker 0", "sending") == [(1, 1.5, "message", {"version": 0, "samples": 0, "bytes": 80})]
    assert found.of("server", "receiving") == [(1.5, "from worker 0")]
    assert [bar[:2] for bar in found.of("server", "updating")] == [(1.5, 2)]
    assert [bar[:2] for bar in found.of("server", "sending")] == [(2, 2.5), (2.25, 2.75)]  # which overlap
    assert found.of("worker 0", "receiving") == [(2.5, "from server")]
    assert found.of("worker 1", "receiving") == [(2.75, "from server")]
    assert found.of("worker 0", "batch size") == [(0, 4), (2.5, 5)]
    assert found.of("worker 0", "staleness") == [(2, 1)]
    assert found.of("staleness of a version") == [(2, 1)]
    assert sorted(map(sorted, found.flows.values())) == [
        [("server", "receiving"), ("worker 0", "sending")],
        [("server", "sending"), ("worker 0", "receiving")],
        [("server", "sending"), ("worker 1", "receiving")],
    ]


def test_both_sides_of_a_comparison_are_processes_of_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With every gradient, update and message of either trace."""
    file, runs = tmp_path / "both.pftrace", [ran(tmp_path / method, method) for method in ("asgd", "ssgd")]

    assert exit_status(monkeypatch, "hetsim-compare", compare_main, *runs, "--perfetto", file) == 0

    found = Decoded(file)
    assert found.processes == {1: "first: asgd on by hand, phantom (sim)", 2: "second: ssgd on by hand, phantom (sim)"}
    for process, run in enumerate(runs, 1):
        rows = parquet.read_table(run / "trace.parquet").to_pylist()
        for kind, track in {"gradient": "computing", "update": "updating", "message": "sending", "all_reduce": "reducing"}.items():
            for rank in {row["rank"] for row in rows}:
                drawn = [bar[:2] for bar in found.of(lane_name(rank, 2), track, process=process)]
                kept = [(row["start"], row["end"]) for row in rows if (row["rank"], row["kind"]) == (rank, kind)]
                assert drawn == [pytest.approx(bar, abs=1e-9) for bar in sorted(kept)]
    assert "on https://ui.perfetto.dev" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "trace", "said"),
    [
        ("out.pftrace", "none", "run it again with trace=full"),
        ("out.json", "full", "must end in .pftrace"),
        ("no/out.pftrace", "full", "make it"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(
    name: str, trace: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is printed or written."""
    run = ran(tmp_path / "run", "ssgd", trace=trace)

    assert exit_status(monkeypatch, "hetsim-compare", compare_main, run, run, "--perfetto", tmp_path / name) == 1

    told = capsys.readouterr()
    assert said in told.err
    assert "Traceback" not in told.err
    assert told.out == ""
    assert not (tmp_path / name).exists()
