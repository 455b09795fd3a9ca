"""Hosts on one machine: network namespaces whose links to a switch have the rates that are given.

It needs root and iproute2, as benchmarks/hosts.sh does. The hosts share the machine's cores, and its clock.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence

BURST = "16kb"
"""What a link lets through at once, in tc's kilobytes."""


def command(*words: str) -> None:
    """Run it; RuntimeError with what it said if it fails."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def namespaces(mbits: Sequence[int]) -> Iterator[list[str]]:
    """The names of as many hosts, each with a link of so many Mbit/s to one switch in both directions; host k is 10.78.0.(k + 1)."""
    if os.geteuid() != 0:
        raise RuntimeError("network namespaces need root")
    switch = f"study{os.getpid()}"
    names = [f"{switch}-{host}" for host in range(len(mbits))]
    made: list[str] = []
    try:
        for name in (switch, *names):
            command("ip", "netns", "add", name)
            made.append(name)
        command("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        command("ip", "-n", switch, "link", "set", "switch", "up")
        for host, (name, mbit) in enumerate(zip(names, mbits, strict=True)):
            command("ip", "-n", name, "link", "set", "lo", "up")
            command("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{host}", "netns", switch)
            command("ip", "-n", name, "address", "add", f"10.78.0.{host + 1}/24", "dev", "eth0")
            command("ip", "-n", name, "link", "set", "eth0", "up")
            command("ip", "-n", switch, "link", "set", f"port{host}", "master", "switch", "up")
            for place, device in ((name, "eth0"), (switch, f"port{host}")):
                command(
                    "tc",
                    "-n",
                    place,
                    "qdisc",
                    "add",
                    "dev",
                    device,
                    "root",
                    "tbf",
                    "rate",
                    f"{mbit}mbit",
                    "burst",
                    BURST,
                    "latency",
                    "200ms",
                )
        yield names
    finally:
        for name in reversed(made):
            subprocess.run(("ip", "netns", "delete", name), capture_output=True)
