"""Decoupled local steps: learners never wait, and a syncer merges the weights of a quorum of learners, one fragment at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

from hetsim import checks
from hetsim.coordination.async_local_steps import cut
from hetsim.coordination.base import Coordination
from hetsim.coordination.bookkeeping.fragments import check_fragments, difference, divide_into_fragments, fragment_entries, parameters_in
from hetsim.coordination.bookkeeping.held import HeldRanges
from hetsim.coordination.local_steps import MAX_PERIOD
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import (
    Batch,
    Commit,
    Contribution,
    Fragment,
    Gradient,
    LocalUpdate,
    Message,
    Node,
    Now,
    PeerLost,
    Program,
    Receive,
    ReceiveWithin,
    Send,
    Update,
)
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.compression import NoCompression
from hetsim.policies.quorum import Quorum
from hetsim.policies.weighting import NoDiscount
from hetsim.vector import Vector, norm, piece, unit, weighted_sum, with_piece

HELLO, MORE, EMPTY, REPORT, ANSWER = range(5)
"""Messages from a learner: it has joined, needs more ranges, has no range left, has taken its steps, or sends its fragment."""
START, RANGES, PULL, FRAGMENT, END = range(5)
"""Messages from the syncer: weights and first ranges, more ranges, a request for a fragment, a fragment's new weights, the run is over."""
LOST = -1
"""The kind of a message that reports the loss of a learner."""


class FragmentAnswer(NamedTuple):
    """A learner's answer: its change of a fragment, its total number of steps (`num_steps`), and how many of the last steps it has `kept`.

    The weights that the learner received have overwritten the earlier steps in all fragments.
    """

    contribution: Contribution
    num_steps: int
    kept: int


class MergedContributions(list[Contribution]):
    """The new contributions of a version, one for each local step. `merged` contains one contribution for each learner."""

    def __init__(self, new: Iterable[Contribution], merged: list[Contribution]) -> None:
        super().__init__(new)
        self.merged = merged


class Learners:
    """The learners that take part, which have reported, which have no range left, and the ranges that each one holds."""

    def __init__(self, plan: Plan, state: State) -> None:
        self.members = set(plan.active_ranks)
        """The learners that take part or are about to begin."""
        self.started: set[int] = set()
        """The learners that have sent HELLO."""
        self.held = HeldRanges.of(plan, state, self.members)
        self.wanting: set[int] = set()
        """The learners that asked for more ranges when none were left."""
        self._num_grants: dict[int, int] = {}
        self._num_settled: dict[int, int] = {}
        self._empty: set[int] = set()
        self._reported: set[int] = set()
        self._version = -1
        """The version that the reports belong to."""

    def join(self, rank: int) -> None:
        """Add a learner. It may have restarted before its loss was noticed."""
        self.lose(rank)
        self.members.add(rank)
        self.started.add(rank)

    def lose(self, rank: int) -> None:
        """Remove a learner. Its ranges are assigned again."""
        self.held.lose(rank)
        for ranks in (self.members, self.started, self.wanting, self._empty, self._reported):
            ranks.discard(rank)
        for counts in (self._num_grants, self._num_settled):
            counts.pop(rank, None)

    def grant(self, rank: int, batches: list[Batch]) -> None:
        """Record batches for a learner, one for each step. A learner without batches is added to `wanting`."""
        if batches or rank not in self._num_grants:
            self._num_grants[rank] = self._num_grants.get(rank, 0) + 1
        if batches:
            self.held.hold(rank, batches)
            self.wanting.discard(rank)
            self._empty.discard(rank)
        else:
            self.wanting.add(rank)

    def settle(self, rank: int, num_steps: int) -> list[Batch]:
        """Remove and return the batches that a learner has computed since the last call. `num_steps` is its total number of steps."""
        new = self.held.settle(rank, num_steps - self._num_settled.get(rank, 0))
        self._num_settled[rank] = num_steps
        return new

    def is_empty(self, rank: int, num_grants: int) -> None:
        """Record that a learner has used up its first `num_grants` grants. Further grants may be in transit."""
        if num_grants == self._num_grants[rank]:
            self._empty.add(rank)

    def has_reported(self, rank: int, version: int) -> None:
        """Record that a learner has received this version and taken its steps since its last answer. Older versions are ignored."""
        if version > self._version:
            self._version = version
            self._reported.clear()
        if version == self._version:
            self._reported.add(rank)

    def num_reported(self, version: int) -> int:
        """The number of learners that have reported for this version."""
        return len(self._reported) if version == self._version else 0

    def ready(self, version: int) -> set[int]:
        """The learners that have reported for this version, and the learners that have no steps left."""
        return self._empty | self._reported if version == self._version else set(self._empty)

    def no_others(self, version: int) -> bool:
        """Whether no other learner will report."""
        return len(self._empty) + self.num_reported(version) >= len(self.members) > 0 and self.members <= self.ready(version)


MERGES = ("radial_directional", "mean")


def radial_directional(vectors: Sequence[Vector], factors: Callable[[], Sequence[float]], num_parameters: int) -> Vector:
    """(Σ f_m ‖Δ_m‖) · φ(Σ f_m φ(Δ_m)), where the f_m add up to 1 and φ(y) = y/‖y‖, φ(0) = 0.

    Radial-directional averaging of Decoupled DiLoCo, arXiv 2604.21428: a mean would be shorter where directions differ. Entries
    after the first `num_parameters` become the weighted mean.
    """
    mean = weighted_sum(vectors, factors)
    heads = [piece(vector, 0, num_parameters) for vector in vectors]
    length = weighted_sum([norm(head) for head in heads], factors)
    direction = unit(weighted_sum([unit(head) for head in heads], factors))
    return with_piece(mean, 0, length * direction)


@dataclass(frozen=True, kw_only=True)
class DecoupledSteps(Coordination):
    """Decoupled DiLoCo, arXiv 2604.21428: learners take local steps without waiting; a syncer, the server, merges their weights.

    A learner reports when it has taken h = H/P steps since the last request, and continues. When K learners have reported, the syncer asks
    all learners for fragment p of their weights; the P fragments take turns. A learner answers between two steps. Its answer contains x_p,
    and its steps and samples since it received p.

    The syncer waits for the learners that had reported, and for the other learners within a grace window. It drops later answers. Then it
    merges Δ_m = Θ_p − x_m,p, takes an outer step of Θ_p along the result, and sends Θ_p to all. Learners replace x_p by Θ_p, and so lose
    their steps in p in the meantime.

    Each merge makes a version. Its contributions are the local steps since the last version, of the learners that answered in time.
    Steps that were overwritten in all fragments before an answer count as discarded. With P = 1, these are the steps between an answer
    and the new weights.

    A learner holds ranges of samples for H steps ahead. It begins at Θ after a crash, and after a resume.
    """

    needs_server: ClassVar[bool] = True
    regroups: ClassVar[bool] = False
    takes_local_steps: ClassVar[bool] = True
    trains_locally: ClassVar[bool] = True
    aligns_epochs: ClassVar[bool] = False
    admission: Quorum

    period: int
    """H"""
    fragments: int
    """P, which divides H"""
    merge: str
    """How the Δ_m are merged: `radial_directional` or `mean`. Both use the `weighting`."""

    def __post_init__(self) -> None:
        checks.whole("coordination.period", self.period, most=MAX_PERIOD)
        check_fragments(self.period, self.fragments)
        checks.choice("coordination.merge", self.merge, MERGES)
        reason = "a syncer asks learners for their weights once a quorum has reported: leave this axis as the method sets it"
        self.only(reason, admission=Quorum, compensation=NoCompensation, discount=NoDiscount)
        self.only("weights are asked for, and no change of them is pushed: take compression=none", compression=NoCompression)

    @property
    def needs_local_steps(self) -> str | None:
        return "between two exchanges the learners take local steps"

    @property
    def steps_per_fragment(self) -> int:
        """h"""
        return self.period // self.fragments

    @property
    def num_ahead(self) -> int:
        return 2 * self.steps_per_range

    @property
    def steps_per_range(self) -> int:
        """The local steps in each of the two ranges that a learner holds."""
        return -(-self.period // 2)

    def initial(self, plan: Plan, weights: Vector, profile: Sequence[Contribution] = ()) -> State:
        divide_into_fragments(weights, plan, self.fragments)
        return super().initial(plan, weights, profile)

    def program(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        return self.syncer(plan, state) if node.rank == node.server else self.learner(node, plan, state)

    def learner(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Take a local step whenever no message is due. Answer pulls, put in new fragments, and ask for further ranges in time."""
        fragments, h, server = divide_into_fragments(state.weights, plan, self.fragments), self.steps_per_fragment, node.server
        yield from Send(server, kind=HELLO)
        start = yield from Receive(server)
        while start.kind not in (START, END):  # sent to the program that was here before a crash which nobody has noticed yet
            start = yield from Receive(server)
        x, version, epoch, answered = start.payload, start.version, start.epoch, start.version - 1
        batches: deque[Batch] = deque()
        num_grants = num_steps = since_answer = 0
        steps, samples = [0] * self.fragments, [0] * self.fragments
        seconds = loss = 0.0
        has_requested, reported = True, -1
        message: Message | None = start
        while message is None or message.kind != END:
            if message is None:
                batch = batches.popleft()
                computed = yield from Gradient(at=x, batch=batch, version=version)
                x = yield from LocalUpdate(at=x, gradient=computed.gradient, version=version, epoch=epoch, in_place=True)
                num_steps, since_answer, seconds, loss = num_steps + 1, since_answer + 1, seconds + computed.seconds, loss + computed.loss
                steps, samples = [count + 1 for count in steps], [count + batch.samples for count in samples]
            elif message.kind == PULL:
                p = message.version % self.fragments
                counts = {"done": num_steps, "kept": max(steps), "steps": steps[p], "samples": samples[p]}
                means = {"seconds": seconds / max(1, since_answer), "loss": loss / max(1, since_answer)}
                yield from Send(server, fragment_entries(x, fragments[p]), kind=ANSWER, version=message.version, **counts, **means)
                answered, since_answer, seconds, loss = message.version, 0, 0.0, 0.0
            elif message.kind == FRAGMENT:
                version, epoch = message.version, message.epoch
                p = (version - 1) % self.fragments
                x = with_piece(x, fragments[p].start, message.payload)
                steps[p] = samples[p] = 0
            else:
                batches.extend(cut(message.batch, message.share) if message.batch else ())
                num_grants += 1
                has_requested = not message.batch
            if version > max(answered, reported) and min(since_answer, max(steps)) >= h:
                reported = version
                yield from Send(server, kind=REPORT, version=version)
            if len(batches) <= self.steps_per_range and not has_requested:
                has_requested = True
                yield from Send(server, kind=MORE)
            if not batches and (message is None or message.kind in (START, RANGES)):
                yield from Send(server, kind=EMPTY, num_grants=num_grants)
            if batches:
                message = yield from ReceiveWithin(0.0, server)
            else:
                message = yield from Receive(server)

    def syncer(self, plan: Plan, state: State) -> Program[State | None]:
        """Wait for a quorum, ask for a fragment, merge the answers in time, step, commit, and send the fragment to all; repeat."""
        fragments = divide_into_fragments(state.weights, plan, self.fragments)
        learners = Learners(plan, state)
        held = learners.held
        state = state.evolve(outstanding=held, next_sample=held.next_sample)
        going = True
        while going and (held or held.has_next(plan)):
            p = fragments[state.version % self.fragments]
            waited = yield from self.quorum(plan, state, learners)
            began = yield from Now()
            answers, grace = yield from self.answers(plan, state, learners, p)
            applied, merged, overwritten = self.count_steps(learners, answers)
            if not (applied and merged):  # all that was learned since the last exchange is overwritten by now
                overwritten += sum(c.samples for c in applied)
                state = state.evolve(num_samples_discarded=state.num_samples_discarded + overwritten)
                continue
            group = MergedContributions(applied, merged)
            weights = yield from Update(at=state.weights, gradient=self.merged_change(group, p, plan), fragment=p)
            now = yield from Now()
            step = sum(c.seconds for c in applied) / len(applied)
            num_samples = state.num_samples + sum(c.samples for c in applied)
            epoch = plan.epoch(num_samples)
            steps = [replace(c, batch=Batch(0, round(c.samples / c.num_gradients))) for c in merged if c.seconds]
            state = state.evolve(
                version=state.version + 1,
                weights=weights,
                num_samples=num_samples,
                num_samples_discarded=state.num_samples_discarded + overwritten,
                next_sample=held.next_sample,
                allocation=self.allocation.observe(state.allocation, steps, epoch),
                admission=self.admission.update_averages(state.admission, step=step, quorum=waited, exchange=now - began - grace),
            )
            going = yield from Commit(state.version, state, group)
            for rank in sorted(learners.started) if going else ():
                yield from Send(rank, fragment_entries(weights, p), kind=FRAGMENT, version=state.version, epoch=epoch)
        for rank in sorted(learners.members):
            yield from Send(rank, kind=END, version=state.version, epoch=0)
        return state.evolve(outstanding=(), next_sample=held.next_sample) if going else None

    def quorum(self, plan: Plan, state: State, learners: Learners) -> Program[float]:
        """Answer learners until K have reported or no other learner will report. Returns the seconds since the first report."""
        first: float | None = None
        while learners.num_reported(state.version) < self.admission.size and not learners.no_others(state.version):
            if first is None and learners.num_reported(state.version):
                first = yield from Now()
            yield from self.attend(plan, state, learners)
        now = yield from Now()
        return 0.0 if first is None else now - first

    def answers(self, plan: Plan, state: State, learners: Learners, p: Fragment) -> Program[tuple[dict[int, FragmentAnswer], float]]:
        """Ask all learners for a fragment. Returns the answers in time, by rank, and the seconds of the grace window."""
        awaited, missing = learners.ready(state.version), set(learners.started)
        for rank in sorted(missing):
            yield from Send(rank, kind=PULL, version=state.version)
        answers: dict[int, FragmentAnswer] = {}
        opened: float | None = None
        closes = 0.0
        while missing:
            within = None
            if not missing & awaited:
                now = yield from Now()
                if opened is None:
                    opened, closes = now, now + self.admission.grace_seconds(state.admission)
                within = max(0.0, closes - now)
            message = yield from self.attend(plan, state, learners, within)
            if message is None:
                break
            if message.kind in (HELLO, LOST):
                missing.discard(message.source)
                answers.pop(message.source, None)
            elif message.kind == ANSWER:
                contribution = Contribution(
                    message.source, Batch(0, message.samples), message.version, message.seconds, message.loss,
                    state.version - message.version, difference(state.weights, message.payload, p, plan), num_gradients=message.steps,
                )  # fmt: skip
                if self.admission.arrived(state.admission, contribution)[1].apply:
                    missing.discard(message.source)
                    answers[message.source] = FragmentAnswer(contribution, message.done, message.kept)
        now = yield from Now()
        return answers, 0.0 if opened is None else now - opened

    def count_steps(self, learners: Learners, answers: dict[int, FragmentAnswer]) -> tuple[list[Contribution], list[Contribution], int]:
        """The contributions of the new local steps, one contribution to merge for each learner, and the number of overwritten samples."""
        applied: list[Contribution] = []
        overwritten = 0
        for rank, answer in sorted(answers.items()):
            new = learners.settle(rank, answer.num_steps)
            first = max(0, len(new) - answer.kept)
            overwritten += sum(batch.samples for batch in new[:first])
            applied += [replace(answer.contribution, batch=batch, gradient=None, num_gradients=1) for batch in new[first:]]
        merged = [answer.contribution for _, answer in sorted(answers.items()) if answer.contribution.num_gradients]
        return applied, merged, overwritten

    def attend(self, plan: Plan, state: State, learners: Learners, within: float | None = None) -> Program[Message | None]:
        """Receive a message, and send the learner the ranges that it needs. Returns the message, or None after `within` seconds."""
        message: Message | None
        try:
            if within is None:
                message = yield from Receive()
            else:
                message = yield from ReceiveWithin(within)
        except PeerLost as lost:
            if lost.rank is None:
                raise
            learners.lose(lost.rank)
            message = Message(lost.rank, {"kind": LOST})
        if message is None:
            return None
        rank = message.source
        if message.kind == HELLO:
            learners.join(rank)
            batch, share = self.grant_range(plan, state, learners, rank, 2 * self.steps_per_range)
            epoch = plan.epoch(state.num_samples)
            yield from Send(rank, state.weights, kind=START, version=state.version, epoch=epoch, batch=batch, share=share)
        elif message.kind == MORE:
            learners.wanting.add(rank)
        elif message.kind == EMPTY:
            learners.is_empty(rank, message.num_grants)
        elif message.kind == REPORT:
            learners.has_reported(rank, message.version)
        if message.kind in (HELLO, LOST, MORE):  # of lost ranges all may have a part
            for asking in sorted(learners.wanting) if message.kind != MORE else [rank]:
                batch, share = self.grant_range(plan, state, learners, asking, self.steps_per_range)
                if batch:
                    yield from Send(asking, kind=RANGES, batch=batch, share=share)
        return message

    def grant_range(self, plan: Plan, state: State, learners: Learners, rank: int, num_steps: int) -> tuple[Batch, int]:
        """A learner's next range for `num_steps` steps (empty if no positions are left now), and the samples of a step."""
        share = self.allocation.shares(state.allocation)[rank]
        batch = learners.held.take(plan, rank, share, num_steps)
        learners.grant(rank, cut(batch, share) if batch else [])
        return batch, share

    def merged_change(self, group: MergedContributions, p: Fragment, plan: Plan) -> Vector:
        """The merged Δ_m of the learners."""
        vectors, factors = [c.gradient for c in group.merged], partial(self.factors, group.merged, plan)
        return weighted_sum(vectors, factors) if self.merge == "mean" else radial_directional(vectors, factors, parameters_in(p, plan))

    def weights(self, group: Sequence[Contribution], plan: Plan) -> list[tuple[int, float]]:
        """The rank of each merged learner, and its factor in the mean."""
        if not isinstance(group, MergedContributions):
            return super().weights(group, plan)
        return [(c.rank, factor) for c, factor in zip(group.merged, self.factors(group.merged, plan), strict=True)]
