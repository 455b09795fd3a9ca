"""Measure the machines of a cluster, and write the cluster file for both backends."""

from __future__ import annotations

import os
import re
import time  # noqa: TID251  the length of a tick is read, and no clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hetsim.answers.text import terminal
from hetsim.calibration.among_workers import AmongWorkers, UncappedWorkers
from hetsim.calibration.around_server import AroundServer
from hetsim.calibration.cluster import Calibrated, fit_cluster
from hetsim.calibration.drift import NUM_PARTS, check_comparable, drifts, split_readings
from hetsim.calibration.drift import format_table as table
from hetsim.calibration.measuring.answer import answer, check_places, prefix, write_all
from hetsim.calibration.measuring.balance import fit_balance
from hetsim.calibration.measuring.proof import TriedMethod, error, predict_runs, real_runs
from hetsim.calibration.program import FITTED, MOST_UPDATES, Measurement, sizes_of
from hetsim.calibration.readings import RankReadings
from hetsim.calibration.sharing import contending_group
from hetsim.cluster.model import Cluster, NodeSpec, Server
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.build import build_experiment
from hetsim.config.cluster_files import check_file, named, written_cluster
from hetsim.config.compose import Composed, composed
from hetsim.config.errors import in_one_sentence
from hetsim.config.methods import shipped
from hetsim.config.start import check_download
from hetsim.coordination.plan import Plan
from hetsim.distributed.backend import Processes
from hetsim.distributed.communication.clock_alignment import clock_id
from hetsim.distributed.environment import is_launched
from hetsim.distributed.pacing.cpu_quota import own_quota
from hetsim.distributed.pacing.padding import realtime_priority
from hetsim.files.temporary import temporary_folder
from hetsim.files.writing import write_text
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.phantom import PhantomWorkload
from hetsim.workloads.task import BYTES, OptimizerRecipe, Recipe


def calibrate(
    file: Path, words: Sequence[str], *, seconds: float, against: Path | None = None, config_dir: Path | None
) -> Calibrated | None:
    """Measure, and write the file. Returns the result; None in a process that does not lead."""
    if not 0.1 <= seconds <= 3600:
        raise ValueError(f"--seconds must be from 0.1 to 3600, not {seconds:g}")
    in_place = [] if config_dir is None or f"cluster={file.stem}" not in words else [config_dir / "cluster" / file.name]
    check_file(file, reads=[*in_place, *([] if against is None else [against])])
    old = None if against is None else (against, written_cluster("--against", against))
    config = composed(["backend=dist", *words, "pictures=false", "trace=none"], config_dir=config_dir, folder=".")
    try:
        return _calibrate(config, file, seconds, old, lambda method: _other_method(method, words, config_dir))
    except Exception as error:
        raise in_one_sentence(error) from None


def _other_method(method: str, words: Sequence[str], config_dir: Path | None) -> Experiment:
    """The experiment of these arguments with another method, without their keys for parts of the method."""
    keys = {"method", *(group for shipped_method in shipped() for group in shipped_method.choices)}
    kept = [word for word in words if re.split(r"[.=@]", word.lstrip("+~"))[0] not in keys]
    config = composed(["backend=dist", *kept, f"method={method}", "pictures=false"], config_dir=config_dir, folder=".")
    return build_experiment(config.entries)[0]


def _calibrate(
    config: Composed,
    file: Path,
    seconds: float,
    old: tuple[Path, Cluster] | None,
    other_method: Callable[[str], Experiment],
) -> Calibrated | None:
    experiment, backend = build_experiment(config.entries)
    check_download(experiment, config.words)
    check_places(file, experiment.num_workers)
    if old is not None:
        with named(f"--against {old[0]}"):
            check_comparable(old[1], experiment.cluster)
    if isinstance(experiment.workload, PhantomWorkload):
        raise ValueError("workload=phantom computes nothing that could be measured: take the workload that you train")
    if any(node.micro_batch is not None for node in experiment.cluster.nodes):
        raise ValueError("cluster.nodes have a micro_batch, which a calibration does not know: leave it out, and add it to the new file")
    if any(node.loading for node in experiment.cluster.nodes):
        raise ValueError("cluster.nodes have a loading, which a calibration does not measure: leave it out")
    if not isinstance(backend, Processes):
        raise ValueError("backend is not dist, and real processes are what is measured: leave it out")
    backend = replace(backend, emulate="none") if backend.emulates == "pad" else backend
    kinds: list[type[Measurement]] = [AmongWorkers, AroundServer]
    if is_launched():
        kinds = [AroundServer if experiment.coordination.needs_server else AmongWorkers]
    elif backend.emulates == "quota":
        kinds.append(UncappedWorkers)
    twice = seconds >= TWICE_SECONDS or AmongWorkers not in kinds
    announcement = duration(experiment.num_workers, seconds, kinds, shares_links=bool(contending_group(experiment.cluster)), twice=twice)
    plan_sizes = [sizes(experiment, rank) for rank in range(experiment.num_workers)]

    def fitted(of: Mapping[type[Measurement], RankReadings], *, beside: str | None = None) -> Calibrated:
        return fit_cluster(
            experiment.cluster, file.stem, plan_sizes, among=of.get(AmongWorkers), around=of.get(AroundServer),
            uncapped=of.get(UncappedWorkers), capped_by_hetsim=backend.emulates == "quota", beside=beside,
            widths=experiment.widths, computing=fit_balance,
        )  # fmt: skip

    with temporary_folder("hetsim-calibrate-") as place:

        def measure_once(kind: type[Measurement], name: str, announcement: str | None = None) -> dict[type[Measurement], RankReadings]:
            capped = backend if kind is not UncappedWorkers else replace(backend, emulate="none")
            measured = measure(experiment, capped, kind, place / name, seconds, announcement, twice=twice)
            return {} if measured is None else {kind: measured}

        def predict(of: Mapping[type[Measurement], RankReadings]) -> list[TriedMethod]:
            cluster = fitted(of, beside=str(place / "noise"))
            for name, noise in cluster.laws.items():
                write_text(Path(name), noise.as_csv())
            return predict_runs(real, parse_cluster(cluster.config), next(iter(of.values())).num_parameters, runs)

        measurements: dict[type[Measurement], RankReadings] = {}
        for kind in kinds:
            measurements |= measure_once(kind, kind.__name__, announcement if kind is kinds[0] else None)
        needs_server, runs = {kind.needs_server for kind in kinds}, place / "runs"
        real, failed = real_runs(other_method, backend, needs_server, seconds, runs)
        if not measurements:
            return None
        proof = predict(measurements)
        repeats = seconds >= TWICE_SECONDS and not is_launched()  # a launcher's processes cannot start others
        if repeats and _doubtful(proof, "running the methods again"):
            earlier = real, failed, runs, proof
            runs = place / "runs again"
            real, failed = real_runs(other_method, backend, needs_server, seconds, runs)
            proof = predict(measurements)
            if len(proof) < len(earlier[-1]) or error(proof) > error(earlier[-1]):
                real, failed, runs, proof = earlier
        if repeats and _doubtful(proof, "measuring again"):
            again: dict[type[Measurement], RankReadings] = {}
            for kind in kinds:
                again |= measure_once(kind, f"{kind.__name__} again")
            if error(second := predict(again)) < error(proof):
                measurements, proof = again, second
    result = fitted(measurements, beside=prefix(file))
    doubtful = [*failed, *(prediction.doubt for prediction in proof if prediction.doubt is not None)]
    result = replace(result, tried={prediction.method: prediction.error for prediction in proof}, doubts=[*result.doubts, *doubtful])
    num_parameters = next(iter(measurements.values())).num_parameters
    write_all(file, experiment, result, num_parameters)
    print(terminal(answer(file, result)), flush=True)
    if old is not None:
        split = {kind: split_readings(measured) for kind, measured in measurements.items()}
        part_results = [fitted({kind: pieces[part] for kind, pieces in split.items()}) for part in range(NUM_PARTS)]
        clusters = [parse_cluster(fit.config) for fit in (fitted(measurements), *part_results)]
        nbytes = BYTES[experiment.dtype] * num_parameters
        print(f"drift since {old[0]}:\n{table(drifts(old[1], clusters[0], clusters[1:], samples=plan_sizes, nbytes=nbytes))}", flush=True)
    return result


def _doubtful(proof: Sequence[TriedMethod], what_is_done: str) -> bool:
    """Whether a prediction is far off. If so, print it."""
    doubts = [prediction.doubt for prediction in proof if prediction.doubt is not None]
    if doubts:
        print(f"{'; '.join(doubts)}: {what_is_done}", flush=True)
    return bool(doubts)


TWICE_SECONDS = 1.0
"""From this length of a phase on, gradients are measured both among workers and around a server, and doubtful predictions again."""
LOCAL_STEP = OptimizerRecipe(Recipe("torch.optim.SGD", {"lr": 0.1}), key="local_optimizer")
"""The local optimizer whose step is measured if the config has none."""


def measure(
    experiment: Experiment,
    backend: Processes,
    kind: type[Measurement],
    folder: Path,
    seconds: float,
    announcement: str | None,
    *,
    twice: bool,
) -> RankReadings | None:
    """The measurements of all processes in one kind of run; None in a process that does not lead.

    `twice`: whether gradients are also measured around a server.
    """
    folder.mkdir()
    output = folder / "measured.json"
    ends: list[NodeSpec | Server] = [*experiment.cluster.nodes, experiment.cluster.server]
    coordination = kind(
        admission=experiment.coordination.admission, output=output, seconds=seconds, facts=facts,
        at_once=contending_group(experiment.cluster) if kind is AroundServer else (),
        by_wall=[experiment.threads > 1 or (end.device or experiment.device) != "cpu" for end in ends],
        computes=twice or kind is not AroundServer,
    )  # fmt: skip
    measured_experiment = replace(
        experiment, coordination=coordination, budget=Budget(updates=MOST_UPDATES, seconds=float(MOST_UPDATES)),
        evaluate_every_epochs=1e9, evaluate_every_seconds=None,
        local_optimizer=experiment.local_optimizer or LOCAL_STEP, regional_optimizer=None, stop_when_diverged=False, nonfinite="skip",
        method="calibration",
    )  # fmt: skip
    backend.check(measured_experiment)
    if announcement is not None and backend.leads(measured_experiment):
        print(announcement, flush=True)
    summary = backend.run(measured_experiment, folder / "run", "")
    return None if summary is None else RankReadings.of_json(output.read_text())


def sizes(experiment: Experiment, rank: int) -> list[int]:
    """The batch sizes to which a worker's times are fitted."""
    plan = Plan(num_workers=experiment.num_workers, batch_size=experiment.batch_size, max_samples=experiment.cluster.max_samples)
    return sizes_of(plan, rank, FITTED)


def duration(num_workers: int, seconds: float, kinds: Sequence[type[Measurement]], *, shares_links: bool, twice: bool) -> str:
    """The expected duration of the calibration, as a sentence."""
    gradients = num_workers + num_workers.bit_length()
    phases = {AmongWorkers: gradients + 3, AroundServer: twice * gradients + 5 + shares_links, UncappedWorkers: gradients + 1}
    total = sum(phases[kind] for kind in kinds) * seconds + 10 * len(kinds)
    return f"hetsim-calibrate: {num_workers} workers, about {total / 60:.1f} minutes, or more where a batch takes seconds"


def facts() -> list[float]:
    """Facts about this process as numbers.

    These are a number for its machine, its usable cores, share and period in seconds of its cgroup's quota, seconds of a tick, and whether
    threads get real-time priority. Share and period are 0 without a quota. The tick is 0 if it is unknown.
    """
    coarse = getattr(time, "CLOCK_MONOTONIC_COARSE", 6)  # Linux's number; its steps are the system's ticks
    try:
        tick = time.clock_getres(coarse)
    except OSError:
        tick = 0.0
    with realtime_priority():
        real_time = os.sched_getscheduler(0) != os.SCHED_OTHER
    return [clock_id(), float(len(os.sched_getaffinity(0))), *own_quota(), tick, float(real_time)]
