"""Distributions by SciPy's names, drawn in blocks. NumPy alone draws common ones, because importing scipy.stats takes half a second."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim import checks
from hetsim.cluster.factors import measured_factors
from hetsim.cluster.streams import generator

GRADIENTS, PROFILING, SPELLS, SERVICE, JITTER, OUTAGES, PERIODS, SHARING, COLLECTIVES = 1, 4, 6, 7, 8, 9, 10, 11, 12
"""Numbers that separate a run's streams of random numbers. Other draws from the same seed use 2, 3 and 5."""
BLOCK = 64  # numbers drawn at a time
MIN_FACTOR, MAX_DRAWN = 1e-100, 1e12
"""The bounds of a drawn factor on times, so that products and quotients stay within a float. Drawn times have the upper bound, too."""


Standard = Callable[..., NDArray[np.float64]]


COMMON: dict[str, tuple[tuple[str, ...], Standard]] = {
    "expon": ((), lambda rng, size: rng.standard_exponential(size)),
    "gamma": (("a",), lambda rng, size, a: rng.standard_gamma(a, size)),
    "lognorm": (("s",), lambda rng, size, s: rng.lognormal(0.0, s, size)),
    "pareto": (("b",), lambda rng, size, b: 1.0 + rng.pareto(b, size)),
    "uniform": ((), lambda rng, size: rng.random(size)),
    "weibull_min": (("c",), lambda rng, size, c: rng.weibull(c, size)),
}
"""Distributions drawn without SciPy: names of the shape parameters, and a function that draws `size` numbers with loc 0 and scale 1."""


MEANS: dict[str, Callable[..., float]] = {
    "expon": lambda: 1.0,
    "gamma": lambda a: a,
    "lognorm": lambda s: math.exp(min(s * s / 2, 700)),
    "pareto": lambda b: b / (b - 1) if b > 1 else math.inf,
    "uniform": lambda: 0.5,
    "weibull_min": lambda c: math.exp(min(math.lgamma(1 + 1 / c), 700)),
}
"""The means of the common distributions with loc 0 and scale 1."""

EMPIRICAL = "empirical"
"""The distribution of measured numbers: each number is equally probable."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of scipy.stats on numbers of at least zero: its name and its parameters (shapes, loc, scale). Or an empirical one."""

    distribution: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    key: str = field(default="a distribution", compare=False)
    """The distribution's key in the config."""
    values: tuple[float, ...] = field(default=(), repr=False)
    """The numbers of an empirical distribution. Their mean is 1."""

    def draws(self, *stream: int, least: float = 0.0) -> Iterator[float]:
        """The numbers of one random stream, which whole numbers identify. They do not depend on other streams.

        Raises ValueError if a number is less than `least` or more than MAX_DRAWN.
        """
        return chain.from_iterable(self._blocks(stream, least))  # a packed block is a quarter of a list of floats

    def _blocks(self, stream: tuple[int, ...], least: float) -> Iterator[memoryview]:
        """The same numbers as packed blocks. The generator is made when the first block is drawn."""
        draw, rng = self.drawer(), generator(*stream)
        while True:
            yield self.check_range(draw(rng, BLOCK), least).data

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Draw `size` numbers from a generator. Raises ValueError as `draws` does."""
        return self.check_range(self.drawer()(rng, size), 0.0)

    def check_range(self, block: NDArray[np.float64], least: float) -> NDArray[np.float64]:
        """Return the drawn numbers. Raises ValueError as `draws` does."""
        smallest, largest = block.min(initial=MAX_DRAWN), block.max(initial=least)
        if not (least <= smallest and largest <= MAX_DRAWN):  # also of NaN
            extreme = float(largest if least <= smallest else smallest)
            raise ValueError(f"{self.key} drew {extreme:g}, which is not between {least:g} and {MAX_DRAWN:g}: make it narrower")
        return block

    def sample(self, size: int, *stream: int) -> list[float]:
        """The first numbers of a stream."""
        drawn: list[float] = self.drawer()(np.random.default_rng(stream), size).tolist()
        return drawn

    def drawer(self) -> Callable[[np.random.Generator, int], NDArray[np.float64]]:
        """A function that draws `size` numbers from a generator."""
        loc, scale = self.parameters.get("loc", 0.0), self.parameters.get("scale", 1.0)
        if self.distribution == EMPIRICAL:
            values = self.values
            return lambda rng, size: loc + scale * np.array([values[place] for place in rng.integers(len(values), size=size).tolist()])
        if self.distribution in COMMON:
            names, standard = COMMON[self.distribution]
            shapes = [self.parameters[name] for name in names]
            return lambda rng, size: loc + scale * standard(rng, size, *shapes)
        from scipy import stats

        distribution = getattr(stats, self.distribution)(**self.parameters)
        return lambda rng, size: np.asarray(distribution.rvs(size=size, random_state=rng), dtype=np.float64)


def parse_distribution(key: str, config: Any) -> Distribution:
    """The distribution that a config describes, such as {distribution: lognorm, s: 0.1}. Raises ValueError if it describes none."""
    if not isinstance(config, Mapping) or not isinstance(config.get("distribution"), str):
        raise ValueError(f"{key} must be null or a mapping such as {{distribution: lognorm, s: 0.1}}, not {config!r}")
    name = config["distribution"]
    if name == EMPIRICAL:
        entry = checks.mapping(key, config, required=("distribution", "file"), optional=("loc", "scale"))
        values = measured_factors(f"{key}.file", entry["file"])
        scale = checks.seconds(f"{key}.scale", 1.0 if entry.get("scale") is None else entry["scale"])
        loc = checks.seconds(f"{key}.loc", 0.0 if entry.get("loc") is None else entry["loc"], zero=True)
        return Distribution(name, {"loc": loc, "scale": scale}, key, values)
    shapes = COMMON[name][0] if name in COMMON else _shapes(key, name)
    entry = checks.mapping(key, config, required=("distribution", *shapes), optional=("loc", "scale"))
    parameters = {}
    for parameter, value in entry.items():
        if parameter != "distribution":
            if isinstance(value, bool) or not isinstance(value, int | float) or not checks.finite(value):
                raise ValueError(f"{key}.{parameter} must be a finite number, not {checks.shown(value)}")
            parameters[parameter] = float(value)
    if name in COMMON:
        for positive in (*shapes, "scale"):
            checks.number(f"{key}.{positive}", parameters.get(positive, 1.0))
        checks.number(f"{key}.loc", parameters.get("loc", 0.0), zero=True)
    else:
        _check_support(key, name, parameters)
    return Distribution(name, parameters, key)


def mean_of(config: Mapping[str, Any]) -> float:
    """The mean of the distribution that a valid config describes."""
    name, loc, scale = config["distribution"], config.get("loc"), config.get("scale")
    shapes = {key: float(value) for key, value in config.items() if key not in ("distribution", "file", "loc", "scale")}
    if name == EMPIRICAL or name in MEANS:
        mean = 1.0 if name == EMPIRICAL else MEANS[name](**shapes)
    else:
        from scipy import stats

        mean = float(getattr(stats, name)(**shapes).mean())
    return (0.0 if loc is None else loc) + (1.0 if scale is None else scale) * mean


def _shapes(key: str, name: str) -> tuple[str, ...]:
    """The shape parameters of SciPy's distribution of this name."""
    from scipy import stats

    distribution = getattr(stats, name, None)
    if not isinstance(distribution, stats.rv_continuous):
        distributions = [distribution for distribution in dir(stats) if isinstance(getattr(stats, distribution), stats.rv_continuous)]
        raise ValueError(
            f"{key}.distribution must be a continuous distribution of scipy.stats, not {name!r}{checks.suggestion(name, distributions)}"
        )
    return tuple(distribution.shapes.split(", ")) if distribution.shapes else ()


def _check_support(key: str, name: str, parameters: Mapping[str, float]) -> None:
    """Refuse a distribution with negative values, because times and their factors are at least zero."""
    from scipy import stats

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        lowest = getattr(stats, name)(**parameters).support()[0]
    if warned:
        raise ValueError(f"{key}: {name} warns of {dict(parameters)} ({' '.join(str(warned[0].message).split())}): choose others")
    if math.isnan(lowest):
        raise ValueError(f"{key}: {name} has no such parameters as {dict(parameters)}: see scipy.stats.{name}")
    if lowest < 0:
        raise ValueError(f"{key} must never be negative, but {name} with these parameters starts at {lowest}: choose others")
