"""Runs as a trace for Perfetto (https://ui.perfetto.dev): one process for each run, with tracks for each rank."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from struct import pack
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from hetsim.answers.files import check_place
from hetsim.checks import printable
from hetsim.files.summary_and_curve import Curve, check_has, read_points, read_summary
from hetsim.files.writing import written_whole
from hetsim.results.comparison.sides import Sides
from hetsim.results.comparison.time_use import TraceRows, read_rows
from hetsim.results.writing.describe import in_words
from hetsim.results.writing.figures import lane_name
from hetsim.runtime.recording.recorder import APPLY, COMMIT, GRADIENT, INTERVAL_KINDS, KINDS, MESSAGE

TRACKS = {
    track: [kind for kind, row in enumerate(INTERVAL_KINDS) if row.track == track]
    for track in dict.fromkeys(row.track for row in INTERVAL_KINDS if row.track is not None)
}
"""The tracks of a rank, with their kinds of intervals. After `sending`, `receiving` shows the times of delivery."""
MAX_SECONDS = 9e9
"""The maximum time in a file: nanoseconds in 64 bits, 285 years."""
SEQUENCE = 1
"""The number of the file's only writer."""


class TracedRun(NamedTuple):
    """A run whose trace has intervals."""

    title: str
    rows: TraceRows
    curve: Curve


def traced(run: Path, name: str = "") -> TracedRun:
    """The run in a folder, with `name` before its title. Raises ValueError if its trace has no intervals."""
    summary = read_summary(run)
    check_has(run, summary, "method", "cluster", "workload", "backend")
    rows = read_rows(run, summary)
    if rows is None:
        raise ValueError(f"{run} has no intervals in its trace.parquet, so there is no timeline: run it again with trace=full")
    if (last := float(rows.end.max())) > MAX_SECONDS:
        raise ValueError(f"{run} has an interval until {last:.3g} s, and a Perfetto trace ends at {MAX_SECONDS:.0e} s: take --html")
    title = f"{summary['method']} on {summary['cluster']}, {summary['workload']} ({summary['backend']})"
    return TracedRun(printable(f"{name}: {title}" if name else title), rows, read_points(run))


def of_sides(sides: Sides) -> list[TracedRun]:
    """The first run of each side. Raises ValueError if one has no intervals."""
    return [traced(side.folders[0], side.name) for side in sides.both]


def check_file(file: Path, writer: str) -> None:
    """Raise ValueError if this command cannot write a trace to this file, or if the package perfetto is not installed."""
    _builder()
    check_place(file, "--perfetto", "pftrace", writer)


def write(path: Path, runs: Sequence[TracedRun], writer: str) -> None:
    """Write these runs to one file of this command, each as a process."""
    with written_whole(path) as file:
        trace = _Trace(file, writer)
        for number, run in enumerate(runs, 1):
            process = trace.track(run.title, process=number)
            _write_counters(trace, process, run)
            _write_ranks(trace, process, run.rows)


def _builder() -> Any:
    try:
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ModuleNotFoundError:
        raise ValueError("a Perfetto trace needs the package perfetto: pip install 'hetsim[perfetto]'") from None
    return StreamingTraceProtoBuilder


PACKET, TIMESTAMP, EVENT, FLOW, VALUE = b"\x0a", b"\x40", b"\x5a", b"\xf9\x02", b"\xe1\x02"
"""The tags of a trace's packet, of a packet's time and event, and of an event's flow and counter, in protobuf's encoding."""
KEPT = 100_000
"""The number of encoded parts of events that are kept."""


class _Trace:
    """The packets of a file.

    A serialised message is the concatenation of its parts. So parts of events are serialised once, and a packet with a time is joined from
    them, which takes less time than a new message.
    """

    def __init__(self, file: BinaryIO, writer: str) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor, TrackEvent

        self._file, self._packets = file, _builder()(file)
        self._event = TrackEvent
        self._header = TracePacket(trusted_packet_sequence_id=SEQUENCE).SerializeToString() + EVENT
        self._bytes = _pairs_of_bytes()
        self._part = lru_cache(maxsize=KEPT)(self._serialised)
        self._annotation = lru_cache(maxsize=KEPT)(self._annotated)
        self._explicit = TrackDescriptor.EXPLICIT
        self._num_tracks = self._num_flows = 0
        packet = self._packets.create_packet()
        packet.system_info.tracing_service_version = writer
        self._packets.write_packet(packet)

    def track(self, name: str, parent: int = 0, *, process: int = 0, counter: bool = False) -> int:
        """Add a track below earlier tracks, and return its number."""
        self._num_tracks += 1
        packet = self._packets.create_packet()
        track = packet.track_descriptor
        track.uuid, track.name, track.child_ordering, track.sibling_order_rank = self._num_tracks, name, self._explicit, self._num_tracks
        if parent:
            track.parent_uuid = parent
        if process:
            track.process.pid, track.process.process_name = process, name
        if counter:
            track.counter.SetInParent()
        self._packets.write_packet(packet)
        return self._num_tracks

    def flow(self) -> int:
        """The number of a new flow, which connects a message with its delivery."""
        self._num_flows += 1
        return self._num_flows

    def interval(self, track: int, name: str, start: float, end: float, *, flow: int = 0, **details: int) -> None:
        """Add a bar to a track, after earlier bars."""
        self._begin(track, self._event.TYPE_SLICE_BEGIN, name, start, flow, details)
        self._write(end, self._part(track, self._event.TYPE_SLICE_END))

    def moment(self, track: int, name: str, at: float, *, flow: int = 0, **details: int) -> None:
        """Add a mark to a track."""
        self._begin(track, self._event.TYPE_INSTANT, name, at, flow, details)

    def count(self, track: int, at: float, value: float) -> None:
        """Set the value of a counter from this time on."""
        self._write(at, self._part(track, self._event.TYPE_COUNTER) + VALUE + pack("<d", value))

    def _begin(self, track: int, kind: int, name: str, at: float, flow: int, details: dict[str, int]) -> None:
        notes = b"".join([self._annotation(key, value) for key, value in details.items()])
        flows = FLOW + flow.to_bytes(8, "little") if flow else b""
        self._write(at, notes + self._part(track, kind, name) + flows)

    def _serialised(self, track: int, kind: int, name: str | None = None) -> bytes:
        return bytes(self._event(type=kind, track_uuid=track, name=name).SerializeToString())

    def _annotated(self, key: str, value: int) -> bytes:
        return bytes(self._event(debug_annotations=[{"name": key, "int_value": value}]).SerializeToString())

    def _write(self, at: float, event: bytes) -> None:
        """Write a packet with an event at this time."""
        whole, beginning = self._bytes
        time, number = b"", round(at * 1e9)
        while number >> 14:
            time += beginning[number & 16383]
            number >>= 14
        packet = TIMESTAMP + time + whole[number] + self._header + whole[len(event)] + event
        self._file.write(PACKET + whole[len(packet)] + packet)


@cache
def _pairs_of_bytes() -> tuple[list[bytes], list[bytes]]:
    """The encodings of the numbers of up to 14 bits in protobuf, seven bits in a byte: as whole numbers, and as beginnings of numbers."""
    whole = [bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7]) for number in range(1 << 14)]
    return whole, [bytes([number & 127 | 128, number >> 7 | 128]) for number in range(1 << 14)]


def _write_counters(trace: _Trace, process: int, run: TracedRun) -> None:
    """Write the evaluations, and the largest staleness of each version."""
    for name in dict.fromkeys(name for _, judged in run.curve for name in judged):
        values = [(at, judged.get(name)) for at, judged in run.curve]
        _write_counter(trace, process, "training loss" if name == "train_loss" else in_words(name), values)
    versions = run.rows.of(COMMIT)
    _write_counter(trace, process, "staleness of a version", _sorted_by_time(run.rows.end[versions], run.rows.staleness[versions]))


def _write_ranks(trace: _Trace, process: int, rows: TraceRows) -> None:
    """Write the tracks of each rank, with its batch sizes and its gradients' staleness."""
    receiver = _receivers(rows)
    flows = {message: trace.flow() for message in np.flatnonzero(receiver >= 0).tolist()}
    delivered = _places(receiver)
    for rank, places in _places(rows.rank).items():
        kind = rows.kind[places]
        parent = trace.track(lane_name(rank, rows.num_workers), process)
        for name, kinds in TRACKS.items():
            _write_intervals(trace, parent, name, rows, places[np.isin(kind, kinds) & (rows.end[places] >= 0)], flows)
            if MESSAGE in kinds and rank in delivered:
                _write_deliveries(trace, trace.track("receiving", parent), rows, delivered[rank], flows)
        computed, applied = places[kind == GRADIENT], places[kind == APPLY]
        _write_counter(trace, parent, "batch size", _sorted_by_time(rows.start[computed], rows.samples[computed]))
        _write_counter(trace, parent, "staleness", _sorted_by_time(rows.end[applied], rows.staleness[applied]))


def _places(keys: Any) -> dict[int, Any]:
    """The indices of each key."""
    order = np.argsort(keys, kind="stable")
    distinct, first = np.unique(keys[order], return_index=True)
    return dict(zip(distinct.tolist(), np.split(order, first[1:]), strict=True))


def _write_intervals(trace: _Trace, parent: int, name: str, rows: TraceRows, which: Any, flows: dict[int, int]) -> None:
    """Write intervals. Overlapping ones, such as messages to several workers, are on several tracks of one name, which Perfetto merges."""
    free: list[tuple[float, int]] = []
    which = which[np.argsort(rows.start[which], kind="stable")]
    columns = (which, rows.start[which], rows.end[which], rows.kind[which], rows.version[which], rows.samples[which], rows.nbytes[which])
    for place, start, end, kind, version, samples, nbytes in zip(*(column.tolist() for column in columns), strict=True):
        start = max(0.0, start)
        end = max(start, end)  # the clocks of two hosts agree within an error
        track = heapq.heappop(free)[1] if free and free[0][0] <= start else trace.track(name, parent)
        heapq.heappush(free, (end, track))
        trace.interval(track, KINDS[kind], start, end, flow=flows.get(place, 0), version=version, samples=samples, bytes=nbytes)


def _write_deliveries(trace: _Trace, track: int, rows: TraceRows, which: Any, flows: dict[int, int]) -> None:
    for place in which[np.argsort(rows.end[which], kind="stable")].tolist():
        sender = lane_name(int(rows.rank[place]), rows.num_workers)
        trace.moment(track, f"from {sender}", max(0.0, float(rows.end[place])), flow=flows[place], bytes=int(rows.nbytes[place]))


def _write_counter(trace: _Trace, parent: int, name: str, values: Iterable[tuple[float, float | None]]) -> None:
    finite = [(at, value) for at, value in values if value is not None and math.isfinite(value)]
    if finite:
        track = trace.track(name, parent, counter=True)
        for at, value in finite:
            trace.count(track, at, value)


def _sorted_by_time(moments: Any, values: Any) -> Iterable[tuple[float, float]]:
    order = np.argsort(moments, kind="stable")
    return zip(moments[order].tolist(), values[order].tolist(), strict=True)


def _receivers(rows: TraceRows) -> Any:
    """The rank that received each message. -1 if the trace does not show it: for a worker's message in methods with local servers."""
    receivers = rows.receiver.copy()
    servers = np.unique(rows.rank[~rows.of_workers])
    if len(servers) == 1:
        receivers[rows.of(MESSAGE) & rows.of_workers] = servers[0]
    return receivers
