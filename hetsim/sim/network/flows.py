"""Simultaneous transfers share links max-min fairly: no flow can get a higher rate unless one of no higher rate gets less.

Flows under the same constraints have the same rate by weight, so they are kept as one *group* with one running total. The total is the
bytes that each flow of the group has received since the group began, per unit of weight (virtual time in weighted fair queueing). A flow
of nbytes that starts at total V ends when the total reaches its *mark* V + nbytes / weight. So each start and end among n flows through
one bottleneck costs O(log n), and does not compute n new finish times.
"""

from __future__ import annotations

from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Final

from simpy.events import URGENT

from hetsim.cluster.network.fairness import connected_groups, max_min_fair
from hetsim.sim.clock import Callback, VirtualClock
from hetsim.sim.network.links import EMPTY_ROUTE, INF, Flow, Group, Link, Route

MAX_TOTAL_RATIO: Final = 2.0**24
"""The ratio of a group's total to a starting flow's bytes above which the total is reset to 0, so that marks stay exact."""

MAX_STALE_ENTRIES: Final = 64
"""The number of heap entries, beyond twice the number of its flows, from which it is rebuilt without flows that have left."""


_serial = attrgetter("serial")


class Flows:
    """All current transfers on one clock. A flow ends, and its `callback(answer)` is called, when its last byte has arrived.

    Flows that end at the same moment all end before the first callback is called, and before anything else happens at that
    moment. Callbacks are called in the order of the starts. A flow without bytes ends at the moment of its start.
    """

    __slots__ = ("_alarm", "_groups", "_num_started", "_unfilled", "_unshared", "env")

    def __init__(self, env: VirtualClock) -> None:
        self.env = env
        self._unshared = Group((), 1.0)
        self._unshared.weight = 1.0
        self._groups: dict[tuple[tuple[Link, ...], float], Group] = {((), INF): self._unshared}
        self._alarm = self._alarm_due
        self._unfilled: dict[Group, None] = {}  # groups whose rates are computed before time advances
        self._num_started = 0

    def start(self, route: Route, nbytes: float, callback: Callback, answer: Any = None, weight: float = 1.0) -> Flow:
        """Start a transfer of this number of bytes; `callback(answer)` is called at its end, never within this call.

        On a shared link, its rate is proportional to its weight.
        """
        self._num_started = serial = self._num_started + 1
        if not nbytes:
            route = EMPTY_ROUTE
        for link in route.changing:
            if not link.watched:
                self._watch(link)
        flow = Flow()
        flow.serial = serial
        flow.route = route
        flow.callback = callback
        flow.answer = answer
        flow.weight = weight
        if route.flows is not self:
            route.group = self._group(route.shared, route.cap, 1.0)
            route.flows = self
        group = None
        for link in route.own:
            if link.alone is not None or link.groups:
                group = self._contended_group(flow)
                break
            link.alone = flow
        if group is None:
            group = route.group if weight == 1.0 else self._group(route.shared, route.cap, weight)
        self._join(group, flow, nbytes)
        return flow

    def cancel(self, flow: Flow) -> None:
        """End a flow now, without its callback; the others share its rate. Does nothing if the flow has ended."""
        flow.callback = None
        group = flow.group
        if group is not None:
            flow.group = None
            for link in flow.route.own:
                if link.alone is flow:
                    link.alone = None
            self._leave(group, flow)

    def rates(self) -> dict[Flow, float]:
        """The current rate of each flow, in bytes per second, in the order of the starts."""
        if self._unfilled:
            self._fill()
        under_way = [(flow.serial, flow) for group in self._groups.values() for _, _, flow in group.heap if flow.group is group]
        return {flow: self._rate(flow) for _, flow in sorted(under_way)}

    def _rate(self, flow: Flow) -> float:
        assert flow.group is not None
        return self._constraints(flow)[1] if flow.group is self._unshared else flow.group.rate * flow.weight

    def _watch(self, link: Link) -> None:
        """Set the current rate of a changing link, and watch it until its next change."""
        assert link.slowdown is not None
        factor, until = link.slowdown.at(self.env.now)
        link.bytes_per_second = link.described / factor
        for group in self._groups.values():
            if link in group.links:
                group.bytes_per_second = min(crossed.bytes_per_second for crossed in group.links)
        for group in link.groups:
            group.settle(self.env.now)
            self._update_rate(group)
            self._schedule_end(group)
        link.watched = until < INF
        if link.watched:
            self.env.at(until, self._follow_change, link)

    def _follow_change(self, link: Link) -> None:
        """Continue to watch a changing link while flows cross it, because a period would never end."""
        link.watched = False
        if link.groups:
            self._watch(link)

    def _group(self, links: tuple[Link, ...], cap: float, weight: float) -> Group:
        """The group of flows of this weight that cross these links under this cap. A cap above the slowest link has no effect."""
        if not links or cap >= min(link.most for link in links):
            cap = INF
        cap /= weight
        group = self._groups.get((links, cap))
        if group is None:
            group = self._groups[links, cap] = Group(links, cap, passing=weight != 1.0 and cap < INF)
        return group

    def _constraints(self, flow: Flow) -> tuple[tuple[Link, ...], float]:
        """The links that a flow may have to share, and its cap: the minimum of its limit and of its own links without other flows."""
        route = flow.route
        links, cap = route.shared, route.limit
        for link in route.own:
            if link.alone is flow:
                cap = min(cap, link.bytes_per_second)
            else:
                links += (link,)
        return links, cap

    def _contended_group(self, flow: Flow) -> Group:
        """The group of a flow that starts while another flow uses one of its own links."""
        for link in flow.route.own:
            if link.alone is not None and link.alone is not flow:
                self._regroup_alone(link)
        return self._group(*self._constraints(flow), flow.weight)

    def _regroup_alone(self, link: Link) -> None:
        """Move the only flow of this link to a group that names the link, because other flows will share the link."""
        flow = link.alone
        assert flow is not None
        group = flow.group
        assert group is not None
        now = self.env.now
        if group is self._unshared:
            remaining = (flow.mark - now) * self._constraints(flow)[1]
        else:
            group.settle(now)
            remaining = (flow.mark - group.given) * flow.weight
        link.alone = flow.group = None
        self._leave(group, flow)
        self._join(self._group(*self._constraints(flow), flow.weight), flow, max(0.0, remaining))

    def _join(self, group: Group, flow: Flow, nbytes: float) -> None:
        """Add a flow with these remaining bytes to a group."""
        now = self.env.now
        flow.group = group
        group.num_flows = num_flows = group.num_flows + 1
        if group is self._unshared:
            flow.mark = mark = now + nbytes / flow.route.cap
        else:
            nbytes /= flow.weight
            if num_flows == 1:
                group.since = now
                group.weight = flow.weight
                self._occupy(group)
            else:
                group.given += group.rate * (now - group.since)
                group.since = now
                group.weight += flow.weight
                if group.given > nbytes * MAX_TOTAL_RATIO:
                    group.rebase()
            flow.mark = mark = group.given + nbytes
            if group.solitary:
                rate = group.bytes_per_second / group.weight
                group.rate = rate if rate < group.cap else group.cap
            else:
                self._fill_soon(group)
        heap = group.heap
        heappush(heap, (mark, flow.serial, flow))
        if heap[0][2] is flow:  # it ends first; all other flows end no earlier than before
            self._set_alarm(group, group.since + (mark - group.given) / group.rate)

    def _occupy(self, group: Group) -> None:
        """Register a group at its links when its first flow joins. A flow that was alone on one of them is moved."""
        for link in group.links:
            link.groups[group] = None
            if link.alone is not None:
                self._regroup_alone(link)
            if len(link.groups) > 1:
                for neighbour in (group, next(iter(link.groups))):
                    neighbour.solitary = False

    def _leave(self, group: Group, flow: Flow) -> None:
        """Remove a flow from the group before its end. Its entry stays in the heap until the heap is rebuilt."""
        group.num_flows -= 1
        if group is not self._unshared:
            group.weight -= flow.weight
        if not group.num_flows:
            self._vacate(group)
        elif group is not self._unshared:
            group.settle(self.env.now)
            self._fill_soon(group)
        if len(group.heap) > 2 * group.num_flows + MAX_STALE_ENTRIES:
            group.rebase()

    def _vacate(self, group: Group) -> None:
        """Remove a group from its links when its last flow has left. Its neighbours get its rate, and its total restarts from 0."""
        group.heap.clear()
        group.given = 0.0
        group.solitary = True
        self._unfilled.pop(group, None)
        if group.passing:
            self._groups.pop((group.links, group.cap), None)
        for link in group.links:
            del link.groups[group]
            for neighbour in link.groups:
                if neighbour.num_flows:  # otherwise it is about to be removed, too
                    neighbour.settle(self.env.now)
                    neighbour.solitary = all(len(crossed.groups) == 1 for crossed in neighbour.links)
                    self._update_rate(neighbour)
                    self._schedule_end(neighbour)
                    break  # all groups on this link are connected

    def _update_rate(self, group: Group) -> None:
        """Update the rate after flows of a settled group started or ended: at once if no other group crosses its links."""
        if not group.num_flows:
            self._vacate(group)
        elif group.solitary:
            rate = group.bytes_per_second / group.weight
            group.rate = rate if rate < group.cap else group.cap
        else:
            self._fill_soon(group)

    def _fill_soon(self, group: Group) -> None:
        """Compute the rates after all events of this time. No bytes flow before, because no time passes."""
        if not self._unfilled:
            self.env.after(0.0, self._fill)
        self._unfilled[group] = None

    def _fill(self, _: Any = None) -> None:
        """Give all groups that are connected to a changed one their max-min fair rates."""
        now, unfilled = self.env.now, self._unfilled
        while unfilled:
            groups, links = connected_groups(next(iter(unfilled)))
            for group, rate in max_min_fair(groups, links).items():
                if rate != group.rate or group in unfilled:
                    group.settle(now)
                    group.rate = rate
                    unfilled.pop(group, None)
                    self._schedule_end(group)

    def _schedule_end(self, group: Group) -> None:
        """Make sure that an alarm is due no later than the end of the group's next flow."""
        heap = group.heap
        while heap and heap[0][2].group is not group:
            heappop(heap)
        if heap:
            self._set_alarm(group, group.since + (heap[0][0] - group.given) / group.rate)

    def _set_alarm(self, group: Group, due: float) -> None:
        """Make sure that an alarm is due at this time or before. If the group's rate is not computed yet, do so after its computation."""
        now = self.env.now
        if due < now:
            due = now
        alarms = group.alarms
        if due < alarms[-1] and not (self._unfilled and group in self._unfilled):
            alarms.append(due)
            self.env.at(due, self._alarm, group, URGENT)

    def _alarm_due(self, group: Group) -> None:
        """End the due flows of all groups with an alarm now. No flow is due if more flows started since the alarm was set."""
        env = self.env
        now = env.now
        ended: list[Flow] = []
        due = self._end(group, now, ended)
        if not ended:
            self._set_alarm(group, due)
            return
        groups, alarm = [group], self._alarm
        while (next_group := env.pop_if_next(alarm)) is not None:
            groups.append(next_group)
            self._end(next_group, now, ended)
        for group in groups:
            if group.since == now:
                self._update_rate(group)
            if group.heap:
                self._schedule_end(group)
        if len(ended) > 1:
            ended.sort(key=_serial)
        for flow in ended:
            callback = flow.callback
            if callback is not None:  # a callback that was called before may have cancelled the flow
                callback(flow.answer)

    def _end(self, group: Group, now: float, ended: list[Flow]) -> float:
        """Remove the due flows from the group of an alarm. Returns the time of the next end at the current rate."""
        group.alarms.pop()
        heap = group.heap
        while heap:
            mark, _, flow = heap[0]
            if flow.group is group:
                due = group.since + (mark - group.given) / group.rate
                if due > now:
                    return due
                flow.group = None
                ended.append(flow)
                group.num_flows -= 1
                if group is not self._unshared:
                    group.weight -= flow.weight
                    group.given = mark
                    group.since = now
                for link in flow.route.own:
                    if link.alone is flow:
                        link.alone = None
            heappop(heap)
        return INF
