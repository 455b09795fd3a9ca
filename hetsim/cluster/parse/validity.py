"""Make the `Calibration` of a cluster from `cluster.calibrated`."""

from __future__ import annotations

from typing import Any

from hetsim import checks
from hetsim.cluster.parse import values
from hetsim.cluster.validity import Calibration

KEY = "cluster.calibrated"
TEXTS = ("date", "machine", "workload", "dtype", "torch")
MAX_COMPOSED = 100
MAX_DOUBTS = 1000
MAX_ERROR = 1e6


def parse_calibration(config: Any) -> Calibration | None:
    """The calibration of a measured cluster; None for a described one. Raises ValueError if it is invalid."""
    if config is None:
        return None
    entry = checks.mapping(
        KEY, config, required=(*TEXTS, "num_parameters", "samples", "threads", "device", "error"), optional=("tried", "composed", "doubts")
    )
    samples = values.sequence(f"{KEY}.samples", entry["samples"], "two sizes, such as [4, 64]")
    sizes = [checks.whole(f"{KEY}.samples.{place}", size) for place, size in enumerate(samples[:3])]
    if len(sizes) != 2 or sizes[0] > sizes[1]:
        raise ValueError(
            f"{KEY}.samples must be the smallest and the largest batch of a gradient, such as [4, 64], not {checks.shown(samples)}"
        )
    error = checks.number(f"{KEY}.error", entry["error"], zero=True)
    if error > MAX_ERROR:
        raise ValueError(f"{KEY}.error must be a share of a gradient's time, such as 0.02, and not {error:g}")
    tried = checks.mapping(f"{KEY}.tried", entry.get("tried") or {}, optional=None, example="{ssgd: 0.02}")
    if len(tried) > MAX_COMPOSED:
        raise ValueError(f"{KEY}.tried must be at most {MAX_COMPOSED} methods, not {len(tried)}")
    composed = [] if entry.get("composed") is None else values.sequence(f"{KEY}.composed", entry["composed"], "names of clusters")
    if len(composed) > MAX_COMPOSED:
        raise ValueError(f"{KEY}.composed must be at most {MAX_COMPOSED} names, not {len(composed)}")
    doubts = [] if entry.get("doubts") is None else values.sequence(f"{KEY}.doubts", entry["doubts"], "reasons")
    if len(doubts) > MAX_DOUBTS:
        raise ValueError(f"{KEY}.doubts must be at most {MAX_DOUBTS} reasons, not {len(doubts)}")
    return Calibration(
        **{name: _parse_text(name, entry[name]) for name in TEXTS},
        num_parameters=checks.whole(f"{KEY}.num_parameters", entry["num_parameters"]),
        samples=(sizes[0], sizes[1]),
        threads=checks.whole(f"{KEY}.threads", entry["threads"]),
        device=checks.device(f"{KEY}.device", entry["device"]),
        error=error,
        tried=tuple((_parse_text("tried", name), _parse_relative_error(f"{KEY}.tried.{name}", number)) for name, number in tried.items()),
        composed=tuple(_parse_text(f"composed.{place}", name) for place, name in enumerate(composed)),
        doubts=tuple(_parse_text(f"doubts.{place}", reason) for place, reason in enumerate(doubts)),
    )


def _parse_relative_error(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not checks.finite(value) or value <= -1:
        raise ValueError(f"{key} must be a relative error above -1, such as 0.02, not {checks.shown(value)}")
    return float(value)


def _parse_text(name: str, value: Any) -> str:
    return checks.name(f"{KEY}.{name}", value)
