"""Break each method's rule in one place, in a copy, and see a test fail.

    python tests/mutations.py [NAME …]

The tests are those of `make test`. The list is quoted in docs/internals/testing.md. A mutation that no test notices is printed as SURVIVED,
and makes the exit status 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutation(NamedTuple):
    """Of which method, what is broken, in which file, what is replaced by what, and which tests are to notice."""

    method: str
    broken: str
    file: str
    old: str
    new: str
    tests: str


ALLOCATION = "hetsim/policies/allocation/periodic.py"
BOUNDS, GROUPS, ON_TIME, RINGLEADER = (f"hetsim/policies/admission/{name}.py" for name in ("bounds", "groups", "on_time", "ringleader"))
COMPENSATION, DELAY = "hetsim/policies/compensation.py", "hetsim/coordination/delayed_server.py"
DELAYED_ALL_REDUCE = "hetsim/coordination/delayed_all_reduce.py"
SERVER, LOCAL = "hetsim/coordination/parameter_server.py", "hetsim/coordination/local_steps.py"
STREAMING, DECOUPLED = "tests/coordination/test_streaming_steps.py", "tests/coordination/test_decoupled_steps.py"
ACCUMULATING = "tests/coordination/test_accumulating_all_reduce.py"
STOPPED = "tests/coordination/test_stopping_server.py"
RULES, ADMITTED = "tests/policies/test_admission_rules.py", "tests/coordination/test_server_admission.py"
ASYNC_LOCAL, WEIGHTING = "tests/owned/test_async_local_steps.py", "hetsim/policies/weighting.py"
PERIODIC, SHIFT = "tests/policies/allocation/test_periodic.py", "tests/policies/allocation/test_gradual_shift.py"
DELAYED_SERVER, DELAYED_RING = "tests/coordination/test_delayed_server.py", "tests/coordination/test_delayed_all_reduce.py"

DROPPED = ":\n            return state, Decision(drop=(contribution,), release=(contribution.rank,))\n        return _apply_if_complete("

MUTATIONS = (
    Mutation(
        "ssgd",
        "a sum in place of the mean",
        "hetsim/coordination/base.py",
        "/ len(group) for w, c in zip(weights",
        "for w, c in zip(weights",
        "tests/test_serial_law.py",
    ),
    Mutation(
        "ddp",
        "the first bucket is as large as the others",
        "hetsim/runtime/buckets.py",
        "(min(FIRST_BYTES, bucket_bytes), bucket_bytes)",
        "(bucket_bytes, bucket_bytes)",
        "tests/coordination/test_overlapped_all_reduce.py",
    ),
    Mutation(
        "asgd",
        "staleness counted from the version before",
        SERVER,
        "staleness = state.version - c.version",
        "staleness = state.version - c.version + 1",
        ADMITTED,
    ),
    Mutation("ssp", "one step too few ahead", BOUNDS, "- slowest <= self.bound", "- slowest < self.bound", RULES),
    Mutation("softsync", "groups of n", GROUPS, "return num_workers // self.n", "return self.n", ADMITTED),
    Mutation(
        "staleness_aware",
        "1/(1+τ)",
        WEIGHTING,
        "1.0 / max(1, staleness)",
        "1.0 / (1 + staleness)",
        RULES,
    ),
    Mutation("fedbuff", "groups of N", GROUPS, "        return self.size", "        return num_workers", ASYNC_LOCAL),
    Mutation(
        "fedasync", "mixed into the weights that the worker began at", COMPENSATION, "(now - contribution.used) +", "0 * now +", ASYNC_LOCAL
    ),
    Mutation(
        "mla",
        "no lead along the momentum",
        "hetsim/workloads/momentum_look_ahead.py",
        "weights.add_(m, alpha=-eta * gamma).add_",
        "weights.add_",
        "tests/owned/test_momentum_look_ahead.py",
    ),
    Mutation(
        "heloco",
        "what points against the momentum grows",
        "hetsim/workloads/heloco.py",
        "delta - beta * along",
        "delta + beta * along",
        "tests/owned/test_momentum_look_ahead.py",
    ),
    Mutation("cgad", "late gradients count more", WEIGHTING, "exp(-self.rate", "exp(self.rate", "tests/owned/test_momentum_look_ahead.py"),
    Mutation(
        "async_local_sgd",
        "D is not divided by N",
        "hetsim/workloads/delayed_nesterov.py",
        "add_(D, alpha=1 / N)",
        "add_(D)",
        "tests/owned/test_async_local_sgd.py",
    ),
    Mutation("rescaled_asgd", "τ/N", WEIGHTING, "(staleness + 1) / num_workers", "staleness / num_workers", RULES),
    Mutation("delay_adaptive", "N/τ", WEIGHTING, "max(num_workers, staleness)", "max(1, staleness)", RULES),
    Mutation("rennala", "groups of N", ON_TIME, "        return self.batch", "        return num_workers", RULES),
    Mutation(
        "ringmaster_lmo",
        "a is the share of the older gradients",
        "hetsim/workloads/lmo.py",
        'm.lerp_(x.grad, group["alpha"])',
        'm.lerp_(x.grad, 1 - group["alpha"])',
        "tests/workloads/test_muon.py",
    ),
    Mutation("ringmaster_stops", "stopped one version late", BOUNDS, "delay >= self.max_delay", "delay > self.max_delay", STOPPED),
    Mutation("rennala_stops", "nobody is stopped", ON_TIME, "return delay > 0", "return delay > 10**9", STOPPED),
    Mutation(
        "mindflayer",
        "Σ B_i in place of Σ B_i p_i",
        "hetsim/coordination/trials.py",
        "c.num_trials * self.probability(measured, c.rank)",
        "c.num_trials",
        "tests/owned/test_trials.py",
    ),
    Mutation("malenia", "each gradient counts the same", WEIGHTING, "(len(m) * m[contribution.rank])", "len(contributions)", RULES),
    Mutation(
        "ringleader",
        "a worker that has had its turn changes the present table",
        RINGLEADER,
        "following=update_mean(state.following, contribution)",
        "current=update_mean(state.current, contribution)",
        "tests/owned/test_server_rules.py",
    ),
    Mutation(
        "backup",
        "what is one version late counts",
        GROUPS,
        "if contribution.staleness" + DROPPED,
        "if contribution.staleness > 1" + DROPPED,
        RULES,
    ),
    Mutation("ringmaster", "τ ≤ R", BOUNDS, "contribution.staleness < self.max_delay", "contribution.staleness <= self.max_delay", RULES),
    Mutation("dc_asgd", "the sign", COMPENSATION, "total += g", "total = g - total", "tests/policies/test_compensation.py"),
    Mutation(
        "dc_asgd_adaptive",
        "m and 1 − m exchanged",
        COMPENSATION,
        "self.decay * state + (1 - self.decay) * g * g",
        "(1 - self.decay) * state + self.decay * g * g",
        "tests/policies/test_compensation.py",
    ),
    Mutation(
        "gap_aware",
        "multiplied in place of divided",
        COMPENSATION,
        "contribution.gradient / (1 +",
        "contribution.gradient * (1 +",
        "tests/policies/test_compensation.py",
    ),
    Mutation(
        "dana",
        "looks back",
        COMPENSATION,
        "return weights - self.learning_rate",
        "return weights + self.learning_rate",
        "tests/policies/test_compensation.py",
    ),
    Mutation(
        "dbs_sgd",
        "seconds per sample taken for speed",
        ALLOCATION,
        "moving_average(old, b / t, self.smoothing)",
        "moving_average(old, t / b, self.smoothing)",
        "tests/policies/allocation/test_dbs.py",
    ),
    Mutation(
        "dbs",
        "every update in place of every epoch",
        ALLOCATION,
        'return epoch_passed if self.reallocate_every == "epoch"',
        'return True if self.reallocate_every == "epoch"',
        PERIODIC,
    ),
    Mutation("omnilearn", "the slow get more", ALLOCATION, "b * mean / t_i", "b * t_i / mean", PERIODIC),
    Mutation(
        "lb_bsp",
        "shifted the wrong way",
        "hetsim/policies/allocation/gradual_shift.py",
        "shares[slowest] -= moved",
        "shares[slowest] += moved",
        SHIFT,
    ),
    Mutation(
        "optperf",
        "a node's time is the smaller of its lines",
        "hetsim/policies/allocation/optperf.py",
        "return max(overhead",
        "return min(overhead",
        "tests/policies/allocation/test_optperf.py",
    ),
    Mutation(
        "ata",
        "an upper confidence bound",
        "hetsim/policies/allocation/adaptive_tasks.py",
        "max(mean - 2 *",
        "max(mean + 2 *",
        "tests/policies/allocation/test_adaptive_tasks.py",
    ),
    Mutation(
        "static",
        "rounded down",
        "hetsim/policies/allocation/base.py",
        "round(batch_size * speed / total)",
        "int(batch_size * speed / total)",
        "tests/policies/allocation/test_static.py",
    ),
    Mutation(
        "hetgrad",
        "weights upside down",
        "hetsim/policies/weighting.py",
        "contribution.samples / fair_share",
        "fair_share / contribution.samples",
        "tests/test_serial_law.py",
    ),
    Mutation(
        "od_sgd",
        "the local step goes on from one's own weights",
        DELAY,
        "                base = newest\n",
        "",
        DELAYED_SERVER,
    ),
    Mutation("od_sgd", "the pull is never posted", DELAY, "if step % self.pull_every == 0:", "if False:", DELAYED_SERVER),
    Mutation(
        "pipe_sgd",
        "the reduction is waited for at once",
        DELAYED_ALL_REDUCE,
        "pending = yield from Start(AllReduce(term, in_place=True))",
        "pending = yield from Start(AllReduce(term, in_place=True))\n                yield from Wait(pending)",
        DELAYED_RING,
    ),
    Mutation(
        "acco",
        "a tentative step changes the optimizer's memory",
        "hetsim/runtime/rank.py",
        "            if not effect.tentative:\n                self.optimizer = memory",
        "            self.optimizer = memory",
        ACCUMULATING,
    ),
    Mutation(
        "acco",
        "no gradient is at the tentative weights",
        "hetsim/coordination/accumulating_all_reduce.py",
        "at, state, going = yield from self.step",
        "_, state, going = yield from self.step",
        ACCUMULATING,
    ),
    Mutation(
        "od_sgd",
        "the local schedule stands still",
        DELAYED_ALL_REDUCE,
        "version=version, epoch=plan.epoch(state.num_samples)",
        "version=version, epoch=0",
        DELAYED_RING,
    ),
    Mutation(
        "od_sgd",
        "a gradient at the latest weights is said to be at those before",
        DELAYED_ALL_REDUCE,
        "            version = state.version\n",
        "",
        DELAYED_RING,
    ),
    Mutation(
        "ssd_sgd",
        "a pull after the first push of a block",
        DELAY,
        "if step % self.pull_every == 0:",
        "if step % self.pull_every == 1 % self.pull_every:",
        DELAYED_SERVER,
    ),
    Mutation(
        "cd_sgd",
        "what was left out is forgotten",
        "hetsim/policies/compression.py",
        "with_tail(gradient + state.residual,",
        "with_tail(gradient,",
        "tests/policies/test_compression.py",
    ),
    Mutation(
        "sparse_loco",
        "what was left out is forgotten",
        "hetsim/policies/compression.py",
        "self.decay * state.residual + gradient",
        "gradient",
        "tests/coordination/test_compressed_local_steps.py",
    ),
    Mutation(
        "abs_sgd",
        "speeds are gathered and not looked at",
        DELAYED_ALL_REDUCE,
        "self.allocation.observe(state.allocation, timings, epoch)",
        "self.allocation.observe(state.allocation, (), epoch)",
        DELAYED_RING,
    ),
    Mutation("local_sgd", "the sign of Δ", LOCAL, "state.weights - x,", "x - state.weights,", "tests/coordination/test_local_steps.py"),
    Mutation(
        "local_sgd",
        "a checkpoint leaves out what is to be reported",
        "hetsim/runtime/rank.py",
        "own=dict(self.own)",
        "own={}",
        "tests/coordination/test_local_steps.py",
    ),
    Mutation(
        "diloco",
        "the local optimizer forgets",
        "hetsim/runtime/rank.py",
        "self.local_optimizer, weights = ",
        "_, weights = ",
        "tests/coordination/test_local_steps.py",
    ),
    Mutation(
        "muloco",
        "the head is a hidden matrix",
        "hetsim/workloads/tasks/flat_model.py",
        ".difference(embeddings, head)",
        ".difference(embeddings)",
        "tests/workloads/test_muon.py",
    ),
    Mutation(
        "halos",
        "momentum in every step",
        "hetsim/workloads/delayed_nesterov.py",
        "if (t + 1) % N == 0:",
        "if True:",
        "tests/owned/test_halos.py",
    ),
    Mutation(
        "halos",
        "pushes of the round trip reach the global weights",
        "hetsim/coordination/hierarchical.py",
        "weights = reference = (1 - alpha)",
        "weights = (1 - alpha)",
        "tests/owned/test_halos.py",
    ),
    Mutation(
        "all on a server",
        "statistics corrected like gradients",
        SERVER,
        "with_tail(gradient, c.gradient, plan.num_parameters)",
        "with_tail(gradient, gradient, plan.num_parameters)",
        "tests/test_every_method.py -k batch_norm",
    ),
    Mutation(
        "local_sgd, diloco",
        "statistics sent as differences",
        LOCAL,
        "with_tail(state.weights - x, x, plan.num_parameters)",
        "with_tail(state.weights - x, state.weights - x, plan.num_parameters)",
        "tests/test_every_method.py -k batch_norm",
    ),
    Mutation(
        "all on a server",
        "who is held back is not sent home",
        SERVER,
        "if going else sorted(waiting)",
        "",
        ADMITTED,
    ),
    Mutation(
        "streaming_diloco",
        "α is the share of the global weights",
        "hetsim/coordination/bookkeeping/fragments.py",
        "(1 - local_share) * theta + local_share *",
        "local_share * theta + (1 - local_share) *",
        STREAMING,
    ),
    Mutation(
        "streaming_diloco",
        "all fragments share a memory",
        "hetsim/runtime/rank.py",
        "memories.get(fragment)",
        "next(reversed(memories.values()), None)",
        STREAMING,
    ),
    Mutation(
        "decoupled_diloco",
        "tokens without the samples per step",
        WEIGHTING,
        "c.samples * c.samples / c.num_gradients",
        "c.samples",
        DECOUPLED,
    ),
    Mutation(
        "decoupled_diloco",
        "a fragment's new weights set the counters of all to zero",
        "hetsim/coordination/decoupled_steps.py",
        "                steps[p] = samples[p] = 0\n",
        "                steps, samples = [0] * self.fragments, [0] * self.fragments\n",
        DECOUPLED,
    ),
    Mutation(
        "decoupled_diloco",
        "no grace",
        "hetsim/policies/quorum.py",
        "return self.grace * max(",
        "return 0 * max(",
        DECOUPLED,
    ),
)


def outcome(mutation: Mutation) -> str:
    """The first test that fails, or SURVIVED."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("hetsim", "conf", "tests", "docs", "pyproject.toml"):
            source = ROOT / part
            shutil.copytree(source, copy / part) if source.is_dir() else shutil.copy(source, copy / part)
        path = copy / mutation.file
        path.write_text(path.read_text(encoding="utf-8").replace(mutation.old, mutation.new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not long", "-p", "no:cacheprovider", *mutation.tests.split()]
        done = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONPATH": str(copy)}
        )
    failed = [
        line.split("::")[1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")) and "::" in line
    ]
    return failed[0] if failed else "SURVIVED" if done.returncode == 0 else f"pytest ended with {done.returncode}"


def main() -> None:
    """One row of a Markdown table for each."""
    chosen = [mutation for mutation in MUTATIONS if not sys.argv[1:] or mutation.method in sys.argv[1:]]
    survived = 0
    for mutation in chosen:
        noticed = outcome(mutation)
        survived += not noticed.startswith("test_")
        print(f"| `{mutation.method}` | {mutation.broken} | `{noticed}` |", flush=True)
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
