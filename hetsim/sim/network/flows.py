"""Transfers at the same time share links max-min fairly: nobody can get more without taking from one who has no more.

Flows under the same constraints have the same rate, so they are kept as one *group* with one running total: the bytes that each
of its flows has been given since the group began. A flow of nbytes that starts at total V ends when the total reaches its *mark*
V + nbytes, so n flows through one bottleneck cost O(log n) for each that comes or goes, and not n new finish times.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, Final

from simpy.events import URGENT

from hetsim.cluster.fairness import connected, max_min_fair
from hetsim.sim.clock import Callback, Clock
from hetsim.sim.network.links import INF, NOWHERE, Flow, Group, Link, Route

FINEST: Final = 2.0**24
"""A group's total is set back to zero when a flow starts that is so many times smaller: next to it the mark would be coarse."""


SPARE: Final = 64
"""So many entries that no longer hold may stand in a heap, beside twice those that do, before it is swept."""


class Flows:
    """All transfers under way on one clock. A flow ends, and `callback(answer)` is called, at the moment its last byte is there.

    Flows that end at the same moment are over before the first `callback` is called, and before anything else happens in this moment;
    they are called in the order of the starts. A flow without bytes ends in the moment of its start.
    """

    __slots__ = ("_alarm", "_free", "_groups", "_num_started", "_unfair", "env")

    def __init__(self, env: Clock) -> None:
        self.env = env
        self._free = Group((), 1.0)
        self._groups: dict[tuple[tuple[Link, ...], float], Group] = {((), INF): self._free}
        self._alarm = self._ring
        self._unfair: dict[Group, None] = {}  # their rates, and their neighbours', are filled before time goes on
        self._num_started = 0

    def start(self, route: Route, nbytes: float, callback: Callback, answer: Any = None) -> Flow:
        """Begin to carry so many bytes; `callback(answer)` is called at their end, never within this call."""
        self._num_started = serial = self._num_started + 1
        if not nbytes:
            route = NOWHERE
        flow = Flow()
        flow.serial = serial
        flow.route = route
        flow.callback = callback
        flow.answer = answer
        if route.flows is not self:
            route.group = self._group(route.shared, route.cap)
            route.flows = self
        group = route.group
        for link in route.own:
            if link.alone is not None or link.groups:
                group = self._shown(flow)
                break
            link.alone = flow
        self._join(group, flow, nbytes)
        return flow

    def cancel(self, flow: Flow) -> None:
        """End it now, without its `callback`; the others share what it had. Of a flow that has ended it does nothing."""
        flow.callback = None
        group = flow.group
        if group is not None:
            flow.group = None
            for link in flow.route.own:
                if link.alone is flow:
                    link.alone = None
            self._leave(group)

    def rates(self) -> dict[Flow, float]:
        """What each flow under way has at this moment, in bytes per second, in the order of the starts."""
        if self._unfair:
            self._fill()
        under_way = [(flow.serial, flow) for group in self._groups.values() for _, _, flow in group.heap if flow.group is group]
        return {flow: self._rate(flow) for _, flow in sorted(under_way)}

    def _rate(self, flow: Flow) -> float:
        assert flow.group is not None
        return self._constraints(flow)[1] if flow.group is self._free else flow.group.rate

    def _group(self, links: tuple[Link, ...], cap: float) -> Group:
        """The group of flows that cross these links under this cap. A cap that no link of them reaches is none."""
        if not links or cap >= min(link.bytes_per_second for link in links):
            cap = INF
        group = self._groups.get((links, cap))
        if group is None:
            group = self._groups[links, cap] = Group(links, cap)
        return group

    def _constraints(self, flow: Flow) -> tuple[tuple[Link, ...], float]:
        """The links that it may have to share, and its cap: its limit, and its own links that carry nothing else."""
        route = flow.route
        links, cap = route.shared, route.limit
        for link in route.own:
            if link.alone is flow:
                cap = min(cap, link.bytes_per_second)
            else:
                links += (link,)
        return links, cap

    def _shown(self, flow: Flow) -> Group:
        """The group of a flow that starts where an own link of it is in use."""
        for link in flow.route.own:
            if link.alone is not None and link.alone is not flow:
                self._show(link)
        return self._group(*self._constraints(flow))

    def _show(self, link: Link) -> None:
        """Move the one flow of this link to a group that names the link: it is not the only one any more."""
        flow = link.alone
        assert flow is not None
        group = flow.group
        assert group is not None
        now = self.env.now
        if group is self._free:
            left = (flow.mark - now) * self._constraints(flow)[1]
        else:
            group.settle(now)
            left = flow.mark - group.given
        link.alone = flow.group = None
        self._leave(group)
        self._join(self._group(*self._constraints(flow)), flow, max(0.0, left))

    def _join(self, group: Group, flow: Flow, nbytes: float) -> None:
        """Let a flow with so many bytes to go have its part in a group."""
        now = self.env.now
        flow.group = group
        group.num_flows = num_flows = group.num_flows + 1
        if group is self._free:
            flow.mark = mark = now + nbytes / flow.route.cap
        else:
            if num_flows == 1:
                group.since = now
                self._occupy(group)
            else:
                group.given += group.rate * (now - group.since)
                group.since = now
                if group.given > nbytes * FINEST:
                    group.rebase()
            flow.mark = mark = group.given + nbytes
            if group.solitary:
                rate = group.bytes_per_second / group.num_flows
                group.rate = rate if rate < group.cap else group.cap
            else:
                self._fill_soon(group)
        heap = group.heap
        heappush(heap, (mark, flow.serial, flow))
        if heap[0][2] is flow:  # nobody ends before it; and whoever does only ends later than was expected
            self._expect(group)

    def _occupy(self, group: Group) -> None:
        """The group's first flow is here: its links carry it, and who was alone on one no longer is."""
        for link in group.links:
            link.groups[group] = None
            if link.alone is not None:
                self._show(link)
            if len(link.groups) > 1:
                for neighbour in (group, next(iter(link.groups))):
                    neighbour.solitary = False

    def _leave(self, group: Group) -> None:
        """One flow of the group was taken out of it before its end; its entry in the heap stays until it is swept."""
        group.num_flows -= 1
        if not group.num_flows:
            self._vacate(group)
        elif group is not self._free:
            group.settle(self.env.now)
            self._fill_soon(group)
        if len(group.heap) > 2 * group.num_flows + SPARE:
            group.rebase()

    def _vacate(self, group: Group) -> None:
        """The group's last flow is gone: what it had is its neighbours', and the next flow counts from zero."""
        group.heap.clear()
        group.given = 0.0
        group.solitary = True
        self._unfair.pop(group, None)
        for link in group.links:
            del link.groups[group]
            for neighbour in link.groups:
                if neighbour.num_flows:  # otherwise it is about to leave, too
                    neighbour.settle(self.env.now)
                    neighbour.solitary = all(len(its.groups) == 1 for its in neighbour.links)
                    self._share(neighbour)
                    self._expect(neighbour)
                    break  # all who cross this link hang together

    def _share(self, group: Group) -> None:
        """Flows of the group came or went: find its new rate, at once if it is alone on its links. Its books are up to date."""
        if not group.num_flows:
            self._vacate(group)
        elif group.solitary:
            rate = group.bytes_per_second / group.num_flows
            group.rate = rate if rate < group.cap else group.cap
        else:
            self._fill_soon(group)

    def _fill_soon(self, group: Group) -> None:
        """Find the rates when all that happens in this moment has happened: until then nothing flows."""
        if not self._unfair:
            self.env.after(0.0, self._fill)
        self._unfair[group] = None

    def _fill(self, _: Any = None) -> None:
        """Give every flow that hangs together with a changed one its max-min fair rate."""
        now, unfair = self.env.now, self._unfair
        while unfair:
            groups, links = connected(next(iter(unfair)))
            for group, rate in max_min_fair(groups, links).items():
                if rate != group.rate or group in unfair:
                    group.settle(now)
                    group.rate = rate
                    unfair.pop(group, None)
                    self._expect(group)

    def _expect(self, group: Group) -> None:
        """See that an alarm rings no later than the group's next flow ends."""
        heap = group.heap
        while heap and heap[0][2].group is not group:
            heappop(heap)
        if heap:
            self._look(group, group.since + (heap[0][0] - group.given) / group.rate)

    def _look(self, group: Group, due: float) -> None:
        """See that an alarm rings then, or before. Of a group whose rate is to be filled, that is seen to when it is."""
        now = self.env.now
        if due < now:
            due = now
        if due < group.alarms[-1] and group not in self._unfair:
            group.alarms.append(due)
            self.env.at(due, self._alarm, group, URGENT)

    def _ring(self, group: Group) -> None:
        """End the flows that are due, of all groups that have an alarm now. Nobody is if more of them have come meanwhile."""
        env = self.env
        now = env.now
        ended: list[tuple[int, Flow]] = []
        due = self._end(group, now, ended)
        if not ended:
            self._look(group, due)
            return
        rung, alarm = [group], self._alarm
        while (another := env.next_too(alarm)) is not None:
            rung.append(another)
            self._end(another, now, ended)
        for group in rung:
            if group.since == now:
                self._share(group)
            if group.heap:
                self._expect(group)
        if len(ended) > 1:
            ended.sort()
        for _, flow in ended:
            callback = flow.callback
            if callback is not None:  # one who was called before it may have cancelled it
                callback(flow.answer)

    def _end(self, group: Group, now: float, ended: list[tuple[int, Flow]]) -> float:
        """Take the flows that are due out of the group, whose alarm rings; when the next would be, at the same rate."""
        group.alarms.pop()
        heap = group.heap
        while heap:
            mark, serial, flow = heap[0]
            if flow.group is group:
                due = group.since + (mark - group.given) / group.rate
                if due > now:
                    return due
                flow.group = None
                ended.append((serial, flow))
                group.num_flows -= 1
                if group is not self._free:
                    group.given = mark
                    group.since = now
                for link in flow.route.own:
                    if link.alone is flow:
                        link.alone = None
            heappop(heap)
        return INF
