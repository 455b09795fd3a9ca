"""The tables of all methods: what a run of each must show, and which identities hold. A new method is one more row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from worlds import Run

from hetsim.trust.shipped import configs

SHIPPED = sorted(path.stem for path in (configs() / "method").glob("*.yaml"))
BALANCED = (32, 32, 64, 128)
"""The shares in proportion to speed of a batch of 256 on mixed4, whose speeds are 1 : 1 : 2 : 4."""

Observation = Callable[[Run], bool]


def staleness(run: Run, *, after: int = 0) -> set[int]:
    """The staleness of the contributions applied after so many updates."""
    return {c.staleness for group in run.applied[after:] for c in group}


def sizes(run: Run) -> set[int]:
    """How many contributions made a version, except for the last ones, which end the run."""
    return {len(group) for group in run.applied[:-4]}


def steps(run: Run) -> set[int]:
    """How many local steps each contribution is of, except for the last ones."""
    return {c.num_gradients for group in run.applied[:-4] for c in group}


def weigh_alike(run: Run) -> bool:
    """Whether all workers have the same share of the applied weight, up to the last version."""
    weights = run.simulation.metrics.applied.weight_shares
    return all(weight is not None and abs(weight - 1 / len(weights)) < 0.01 for weight in weights)


def num_given_up(run: Run) -> int:
    """How many gradients were given up before their end."""
    return sum(not row.samples for row in run.rows("gradient"))


def shares(run: Run) -> tuple[int, ...]:
    """The shares after the last commit."""
    split: tuple[int, ...] = run.simulation.experiment.coordination.allocation.shares(run.states[-1].allocation)
    return split


def balanced(run: Run, *, within: int = 0) -> bool:
    """Whether the shares are in proportion to speed."""
    return max(abs(share - best) for share, best in zip(shares(run), BALANCED, strict=True)) <= within


def synchronous(run: Run) -> bool:
    """Whether all workers contribute to each version, and no contribution is late."""
    return staleness(run) == {0} and sizes(run) == {4}


def asynchronous(run: Run) -> bool:
    """Whether each gradient makes a version, and some are late."""
    return sizes(run) == {1} and max(staleness(run)) > 1


def delayed(run: Run) -> bool:
    """Whether staleness is 0 in the warm-up, and 1 after the first update that follows it."""
    return staleness(run) == {0, 1} and staleness(run, after=21) == {1} and {c.staleness for g in run.applied[:21] for c in g} == {0}


def pushes(run: Run) -> set[int]:
    """The sizes in bytes of the workers' pushes."""
    return {row.nbytes for row in run.rows("message") if row.rank < 4 and row.nbytes}


def reduced(run: Run) -> set[int]:
    """The sizes in bytes of the all-reduces."""
    return {row.nbytes for row in run.rows("all_reduce")}


def begin_beside_gradients(run: Run) -> bool:
    """Whether each all-reduce begins, on every rank, when one of its gradients does."""
    return {(row.rank, row.start) for row in run.rows("all_reduce")[:-4]} <= {(row.rank, row.start) for row in run.rows("gradient")}


def taken(run: Run, rank: int) -> list[int]:
    """The local steps of a worker in each version."""
    return [sum(c.rank == rank for c in group) for group in run.applied]


def memory(run: Run) -> Any:
    """What the optimizer that makes versions remembers at the end."""
    return run.simulation.processes[run.simulation.experiment.leader].state.optimizer


def local_memory(run: Run) -> Any:
    """What the local optimizer of rank 0 remembers at the end."""
    return run.simulation.processes[0].state.local_optimizer


def changed(run: Run, name: str) -> bool:
    """Whether a field of the allocation's state has changed since the first update."""
    return getattr(run.states[0].allocation, name) != getattr(run.states[-1].allocation, name)


@dataclass(frozen=True)
class Row:
    """`shows` is true for a run on mixed4 that does what is specific to the method; `keys` change its config for a quadratic."""

    shows: Observation
    keys: dict[str, Any] = field(default_factory=dict)


SHRINKING = {
    "momentum": 0.5,
    "local_learning_rate": 0.1,
    "local_learning_rate_schedule": {"_target_": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.95},
    "local_optimizer": {"weight_decay": 0.0},
}
"""Keys with which it converges: Adam's steps do not shrink by themselves, and weight decay moves the optimum."""

DROPPING = ("backup", "decoupled_diloco", "halos", "malenia", "rennala", "ringmaster")
"""Methods that drop gradients, or whose pushes may not reach a version."""

STOPPING = ("rennala_stops", "ringmaster_lmo", "ringmaster_stops")
"""Methods that give up gradients and compute their samples again, also those of one that was on its way when its worker was stopped."""

METHODS: dict[str, Row] = {
    "ssgd": Row(synchronous),
    "ddp": Row(lambda run: synchronous(run) and run.simulation.experiment.coordination.overlapped_bytes == 25 * 2**20),
    "backup": Row(lambda run: staleness(run) == {0} and sizes(run) == {3} and run.states[-1].num_samples_discarded > 0),
    "mindflayer": Row(lambda run: synchronous(run) and steps(run) == {2}),
    "asgd": Row(asynchronous),
    "ssp": Row(lambda run: asynchronous(run) and any(state.admission.waiting for state in run.states)),
    "softsync": Row(lambda run: sizes(run) == {2} and max(staleness(run)) > 1),
    "ringmaster": Row(lambda run: 1 < max(staleness(run)) < 4 and run.states[-1].num_samples_discarded > 0),
    "staleness_aware": Row(asynchronous),
    "rescaled_asgd": Row(asynchronous),
    "delay_adaptive": Row(asynchronous),
    "rennala": Row(lambda run: staleness(run) == {0} and sizes(run) == {3} and run.states[-1].num_samples_discarded > 0),
    "ringmaster_stops": Row(lambda run: 1 < max(staleness(run)) < 4 and num_given_up(run) > 0),
    "ringmaster_lmo": Row(
        lambda run: 1 < max(staleness(run)) < 4 and num_given_up(run) > 0 and "1.weight/momentum_buffer" in memory(run),
        keys={
            "learning_rate": 0.05,
            "learning_rate_schedule": {"_target_": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.95},
        },
    ),
    "rennala_stops": Row(lambda run: staleness(run) == {0} and sizes(run) == {3} and num_given_up(run) > 0),
    "malenia": Row(
        lambda run: (
            staleness(run) == {0}
            and min(sizes(run)) >= 4
            and max(sizes(run)) > 4
            and all({c.rank for c in group} == {0, 1, 2, 3} for group in run.applied[:-4])
            and run.states[-1].num_samples_discarded > 0
        )
    ),
    "ringleader": Row(lambda run: 1 < max(staleness(run)) <= 6 and max(sizes(run)) > 1 and weigh_alike(run)),
    "fedbuff": Row(lambda run: sizes(run) == {3} and max(staleness(run)) > 1 and steps(run) == {4}),
    "fedasync": Row(lambda run: asynchronous(run) and steps(run) == {4}),
    "mla": Row(lambda run: asynchronous(run) and steps(run) == {4}),
    "heloco": Row(lambda run: asynchronous(run) and steps(run) == {4}),
    "cgad": Row(
        lambda run: asynchronous(run) and steps(run) == {4},
        keys={"learning_rate": 0.3, "learning_rate_schedule": {"_target_": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.97}},
    ),
    "async_local_sgd": Row(lambda run: asynchronous(run) and steps(run) == {1, 2, 4, 8}),
    "dc_asgd": Row(asynchronous),
    "dc_asgd_adaptive": Row(lambda run: asynchronous(run) and bool(run.states[-1].compensation.abs().max() > 0)),
    "gap_aware": Row(lambda run: asynchronous(run) and bool(run.states[-1].compensation.v.abs().max() > 0)),
    "dana": Row(lambda run: asynchronous(run) and bool(run.states[-1].compensation.total.abs().max() > 0)),
    "dbs_sgd": Row(lambda run: asynchronous(run) and balanced(run)),
    "dbs": Row(lambda run: synchronous(run) and balanced(run)),
    "omnilearn": Row(lambda run: synchronous(run) and balanced(run)),
    "lb_bsp": Row(lambda run: synchronous(run) and balanced(run, within=2) and changed(run, "step")),
    "optperf": Row(lambda run: synchronous(run) and balanced(run) and run.states[-1].allocation.settled),
    "ata": Row(lambda run: staleness(run) == {0} and balanced(run, within=4) and run.states[-1].allocation.num_rounds == len(run.states)),
    "static": Row(lambda run: synchronous(run) and balanced(run) and run.simulation.record.profile_seconds > 0),
    "hetgrad": Row(lambda run: synchronous(run) and balanced(run) and run.simulation.record.profile_seconds > 0),
    "acco": Row(lambda run: staleness(run) == {0, 1} and min(taken(run, 3)[1:-4]) > max(taken(run, 0)[1:-4]) > 0),
    "od_sgd": Row(delayed),
    "pipe_sgd": Row(delayed),
    "ssd_sgd": Row(lambda run: staleness(run, after=25) == {1, 2, 3, 4, 5}),
    "cd_sgd": Row(lambda run: delayed(run) and 8 * min(pushes(run)) < max(pushes(run))),
    "abs_sgd": Row(lambda run: delayed(run) and balanced(run)),
    "local_sgd": Row(lambda run: sizes(run) == {40}),
    "diloco": Row(lambda run: sizes(run) == {40}, keys=SHRINKING),
    "muloco": Row(lambda run: sizes(run) == {40} and "1.weight/momentum_buffer" in local_memory(run), keys=SHRINKING),
    "sparse_loco": Row(
        lambda run: sizes(run) == {40} and {row.nbytes for row in run.rows("gather")} == {3 * 64 * (4 + 2)},
        keys={**SHRINKING, "learning_rate": 1.0, "momentum": 0.0},
    ),
    "decoupled_diloco": Row(
        lambda run: (
            staleness(run) == {0}
            and all({c.rank for c in group} >= {3} for group in run.applied[:-4])
            and max(taken(run, 3)) > max(taken(run, 0)) > 0
            and run.states[-1].admission.exchange > 0
        ),
        keys=SHRINKING,
    ),
    "streaming_diloco": Row(
        lambda run: sizes(run) == {20} and max(reduced(run)) <= run.weights.nbytes / 2 + 4 and begin_beside_gradients(run),
        keys=SHRINKING,
    ),
    "halos": Row(lambda run: sizes(run) == {8} and steps(run) == {1, 2, 4} and max(staleness(run)) > 0),
}


@dataclass(frozen=True)
class Identity:
    """Two configs of one method: they have the same times of commits, the same parameters, or both."""

    one: tuple[str, ...]
    other: tuple[str, ...]
    times: bool
    parameters: bool
    keys: dict[str, Any] = field(default_factory=dict)
    equal_nodes: bool = False


DECAYING = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": 0.5}
DELAYED = {"learning_rate": 0.05, "momentum": 0.9, "local_learning_rate": 0.2}
IDENTITIES: dict[str, Identity] = {
    "ssp without a bound is asgd": Identity(
        ("method=ssp",), ("method=asgd",), times=True, parameters=True, keys={"one": {"admission": {"bound": None}}}
    ),
    "softsync with n = N and no discount is asgd": Identity(
        ("method=softsync",), ("method=asgd",), times=True, parameters=True, keys={"one": {"admission": {"n": 3}}}
    ),
    "backup without spares is a barrier": Identity(
        ("method=backup",),
        ("method=ssgd", "coordination=parameter_server"),
        times=True,
        parameters=True,
        keys={"one": {"admission": {"spares": 0}}},
    ),
    "ringmaster with no limit in sight is asgd": Identity(
        ("method=ringmaster",), ("method=asgd",), times=True, parameters=True, keys={"one": {"admission": {"max_delay": 10**9}}}
    ),
    "dc_asgd with strength 0 is asgd": Identity(
        ("method=dc_asgd",), ("method=asgd",), times=True, parameters=True, keys={"one": {"compensation": {"strength": 0.0}}}
    ),
    "dc_asgd_adaptive with strength 0 is asgd": Identity(
        ("method=dc_asgd_adaptive",), ("method=asgd",), times=True, parameters=True, keys={"one": {"compensation": {"strength": 0.0}}}
    ),
    "gap_aware with an infinite scale is asgd": Identity(
        ("method=gap_aware",), ("method=asgd",), times=True, parameters=True, keys={"one": {"compensation": {"scale": float("inf")}}}
    ),
    "dana without momentum is asgd": Identity(
        ("method=dana",), ("method=asgd",), times=True, parameters=True, keys={"one": {"compensation": {"momentum": 0.0}}}
    ),
    "od_sgd in an endless warm-up is ssgd on a server": Identity(
        ("method=od_sgd",),
        ("method=ssgd", "coordination=parameter_server"),
        times=True,
        parameters=True,
        keys={"one": {"coordination": {"warm_up": 10**9}}},
    ),
    "od_sgd on all-reduce in an endless warm-up is ssgd": Identity(
        ("method=od_sgd", "coordination=one_step_delay_all_reduce"),
        ("method=ssgd",),
        times=True,
        parameters=True,
        keys={"one": {"coordination": {"warm_up": 10**9}}},
    ),
    "od_sgd on a server learns what it learns on all-reduce": Identity(
        ("method=od_sgd",), ("method=od_sgd", "coordination=one_step_delay_all_reduce"), times=False, parameters=True
    ),
    "od_sgd with a local schedule learns on a server what it learns on all-reduce": Identity(
        ("method=od_sgd",),
        ("method=od_sgd", "coordination=one_step_delay_all_reduce"),
        times=False,
        parameters=True,
        keys={"both": {"local_learning_rate_schedule": DECAYING, "coordination": {"warm_up": 4}}},
    ),
    "pipe_sgd is od_sgd on all-reduce without a local optimizer": Identity(
        ("method=pipe_sgd",),
        ("method=od_sgd", "coordination=one_step_delay_all_reduce", "local_optimizer=none"),
        times=True,
        parameters=True,
        keys={"both": DELAYED},
    ),
    "acco of equal workers, without tentative steps, is pipe_sgd without a warm-up": Identity(
        ("method=acco",),
        ("method=pipe_sgd",),
        times=True,
        parameters=True,
        keys={
            "both": {"learning_rate": 0.05, "momentum": 0.9},
            "one": {"coordination": {"exchanges": 1}},
            "other": {"coordination": {"warm_up": 0}},
        },
        equal_nodes=True,
    ),
    "abs_sgd is pipe_sgd with batches by speed, weighted per sample": Identity(
        ("method=abs_sgd",), ("method=pipe_sgd", "allocation=dbs", "weighting=per_sample"), times=True, parameters=True
    ),
    "ssd_sgd that pulls after every push is od_sgd": Identity(
        ("method=ssd_sgd",),
        ("method=od_sgd",),
        times=True,
        parameters=True,
        keys={"both": DELAYED, "one": {"coordination": {"pull_every": 1}}},
    ),
    "cd_sgd whose pushes are all whole is od_sgd": Identity(
        ("method=cd_sgd",),
        ("method=od_sgd",),
        times=True,
        parameters=True,
        keys={"both": DELAYED, "one": {"compression": {"full_every": 1}}},
    ),
    "cd_sgd in an endless warm-up is ssgd on a server": Identity(
        ("method=cd_sgd",),
        ("method=ssgd", "coordination=parameter_server"),
        times=True,
        parameters=True,
        keys={"both": DELAYED, "one": {"coordination": {"warm_up": 10**9}}},
    ),
    "local_sgd with period 1 is ssgd without momentum": Identity(
        ("method=local_sgd",),
        ("method=ssgd",),
        times=False,
        parameters=True,
        keys={"one": {"coordination": {"period": 1}}, "other": {"learning_rate": 0.2, "momentum": 0.0}},
    ),
    "diloco with plain local and outer steps is local_sgd": Identity(
        ("method=diloco", "local_optimizer=sgd", "optimizer=sgd"),
        ("method=local_sgd",),
        times=True,
        parameters=True,
        keys={"both": {"learning_rate": 1.0, "momentum": 0.0, "local_learning_rate": 0.1, "coordination": {"period": 2}}},
    ),
    "muloco of a model without hidden matrices is diloco with its settings of AdamW": Identity(
        ("method=muloco",),
        ("method=diloco",),
        times=True,
        parameters=True,
        keys={
            "both": {"momentum": 0.9, "coordination": {"period": 2}},
            "one": {"local_optimizer": {"betas": [0.9, 0.999], "weight_decay": 0.01}},
        },
    ),
    "sparse_loco that sends everything is diloco with plain outer steps": Identity(
        ("method=sparse_loco",),
        ("method=diloco", "optimizer=sgd"),
        times=False,
        parameters=True,
        keys={
            "both": {"learning_rate": 1.0, "momentum": 0.0, "coordination": {"period": 2}},
            "one": {"compression": {"keep": 8, "chunk": 8}},
        },
    ),
    "streaming_diloco of one fragment, averaged at once, is diloco": Identity(
        ("method=streaming_diloco",),
        ("method=diloco",),
        times=True,
        parameters=True,
        keys={
            "one": {"coordination": {"period": 2, "fragments": 1, "delay": 0, "local_share": 0.0}},
            "other": {"coordination": {"period": 2}},
        },
    ),
    "ddp of one bucket is ssgd": Identity(("method=ddp",), ("method=ssgd",), times=True, parameters=True),
    "ddp of several buckets learns what ssgd learns": Identity(
        ("method=ddp",),
        ("method=ssgd",),
        times=False,
        parameters=True,
        keys={"one": {"coordination": {"bucket_bytes": 8}}},
    ),
    "unequal batches that overlap their buckets learn what they learn": Identity(
        ("method=dbs", "allocation=fixed", "coordination=overlapped_all_reduce"),
        ("method=dbs", "allocation=fixed"),
        times=False,
        parameters=True,
        keys={"one": {"coordination": {"bucket_bytes": 8}}, "both": {"allocation": {"parts": [3, 1, 2]}}},
    ),
    "hetgrad on equal nodes is ssgd": Identity(("method=hetgrad",), ("method=ssgd",), times=True, parameters=True, equal_nodes=True),
    "static on equal nodes is ssgd": Identity(("method=static",), ("method=ssgd",), times=True, parameters=True, equal_nodes=True),
    "dbs on equal nodes is even": Identity(
        ("method=ssgd", "allocation=dbs"), ("method=ssgd",), times=True, parameters=True, equal_nodes=True
    ),
    "omnilearn without smoothing and dead band is dbs": Identity(
        ("method=omnilearn",),
        ("method=dbs", "allocation=dbs"),
        times=True,
        parameters=True,
        keys={"one": {"allocation": {"smoothing": 0.0, "dead_band": 0.0}}},
    ),
    "fedbuff of single local steps, applied on arrival, is asgd": Identity(
        ("method=fedbuff", "discount=none"),
        ("method=asgd",),
        times=True,
        parameters=True,
        keys={"one": {"admission": {"size": 1}, "coordination": {"period": 1}, "learning_rate": 1.0, "local_learning_rate": 0.1}},
    ),
    "fedbuff with K = ⌊N/n⌋ and single local steps is softsync": Identity(
        ("method=fedbuff", "discount=none"),
        ("method=softsync",),
        times=True,
        parameters=True,
        keys={
            "one": {"admission": {"size": 3}, "coordination": {"period": 1}, "learning_rate": 1.0, "local_learning_rate": 0.1},
            "other": {"admission": {"n": 1}, "learning_rate": 0.1, "momentum": 0.0},
        },
    ),
    "fedasync that adds differences in place of mixing is fedbuff with K = 1": Identity(
        ("method=fedasync", "compensation=none"),
        ("method=fedbuff",),
        times=True,
        parameters=True,
        keys={"both": {"learning_rate": 0.9}, "other": {"admission": {"size": 1}}},
    ),
    "fedasync of one worker without a discount, with α = 1, is one local run": Identity(
        ("method=fedasync", "discount=none"),
        ("method=asgd",),
        times=False,
        parameters=True,
        keys={
            "num_nodes": 1,
            "one": {"coordination": {"period": 1}, "learning_rate": 1.0, "local_learning_rate": 0.1},
        },
        equal_nodes=True,
    ),
    "mla without momentum is fedbuff with K = 1": Identity(
        ("method=mla",),
        ("method=fedbuff", "discount=none"),
        times=True,
        parameters=True,
        keys={"both": {"learning_rate": 0.4, "momentum": 0.0}, "other": {"admission": {"size": 1}}},
    ),
    "heloco that keeps every change is mla": Identity(
        ("method=heloco",),
        ("method=mla",),
        times=True,
        parameters=True,
        keys={"one": {"optimizer": {"cosine": 0.0, "strength": 0.0}}},
    ),
    "cgad is adam on the server where nothing is late": Identity(
        ("method=cgad",),
        ("method=cgad", "discount=none"),
        times=True,
        parameters=True,
        keys={"num_nodes": 1, "both": {"learning_rate": 0.05, "coordination": {"period": 1}}},
        equal_nodes=True,
    ),
    "async_local_sgd of single local steps, with ε = 1 and no momentum, is asgd": Identity(
        ("method=async_local_sgd",),
        ("method=asgd",),
        times=True,
        parameters=True,
        keys={
            "one": {
                "coordination": {"period": 1},
                "learning_rate": 1.0,
                "local_learning_rate": 0.1,
                "optimizer": {"buffer_size": 1},
            },
        },
    ),
    "delay_adaptive is asgd where no gradient is more than N versions old": Identity(
        ("method=delay_adaptive",), ("method=asgd",), times=True, parameters=True, equal_nodes=True
    ),
    "rescaled_asgd of one worker is asgd": Identity(
        ("method=rescaled_asgd",), ("method=asgd",), times=True, parameters=True, keys={"num_nodes": 1}, equal_nodes=True
    ),
    "rennala of single gradients is ringmaster with R = 1": Identity(
        ("method=rennala",),
        ("method=ringmaster",),
        times=True,
        parameters=True,
        keys={
            "both": {"learning_rate": 0.1, "momentum": 0.0},
            "one": {"admission": {"batch": 1}},
            "other": {"admission": {"max_delay": 1}},
        },
    ),
    "ringmaster_stops with no limit in sight is asgd": Identity(
        ("method=ringmaster_stops",), ("method=asgd",), times=True, parameters=True, keys={"one": {"admission": {"max_delay": 10**9}}}
    ),
    "ringmaster_lmo with plain steps is ringmaster_stops": Identity(
        ("method=ringmaster_lmo", "optimizer=sgd"),
        ("method=ringmaster_stops",),
        times=True,
        parameters=True,
        keys={"both": {"learning_rate": 0.1}},
    ),
    "rennala_stops of single gradients is ringmaster_stops with R = 1": Identity(
        ("method=rennala_stops",),
        ("method=ringmaster_stops",),
        times=True,
        parameters=True,
        keys={
            "both": {"learning_rate": 0.1, "momentum": 0.0},
            "one": {"admission": {"batch": 1}},
            "other": {"admission": {"max_delay": 1}},
        },
    ),
    "rennala_stops of equal workers with B = N is ssgd on a server": Identity(
        ("method=rennala_stops",),
        ("method=ssgd", "coordination=parameter_server"),
        times=True,
        parameters=True,
        keys={"num_nodes": 3, "one": {"admission": {"batch": 3}}},
        equal_nodes=True,
    ),
    "mindflayer of one trial without a limit is ssgd on a server": Identity(
        ("method=mindflayer",),
        ("method=ssgd", "coordination=parameter_server"),
        times=True,
        parameters=True,
        keys={"one": {"coordination": {"trials": 1}}},
    ),
    "mindflayer whose limits are never met is mindflayer without": Identity(
        ("method=mindflayer",),
        ("method=mindflayer",),
        times=True,
        parameters=True,
        keys={"one": {"coordination": {"within": [1e3, 1e4, 1e5], "success": 1.0}}},
    ),
    "ringleader of one worker is asgd": Identity(
        ("method=ringleader",), ("method=asgd",), times=True, parameters=True, keys={"num_nodes": 1}, equal_nodes=True
    ),
    "rennala of one worker with B = 1 is ssgd on a server": Identity(
        ("method=rennala",),
        ("method=ssgd", "coordination=parameter_server"),
        times=True,
        parameters=True,
        keys={"num_nodes": 1, "one": {"admission": {"batch": 1}}},
        equal_nodes=True,
    ),
    "malenia of one worker is ssgd on a server": Identity(
        ("method=malenia",),
        ("method=ssgd", "coordination=parameter_server"),
        times=True,
        parameters=True,
        keys={"num_nodes": 1},
        equal_nodes=True,
    ),
    "staleness_aware is asgd where nothing is more than one version old": Identity(
        ("method=staleness_aware",), ("method=asgd",), times=True, parameters=True, keys={"num_nodes": 2}, equal_nodes=True
    ),
}
