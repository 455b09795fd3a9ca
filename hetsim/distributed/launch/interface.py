"""Find the network interface through which the processes of a run on several hosts reach each other."""

from __future__ import annotations

import socket
import struct
import sys

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def interface_to(address: str, port: int) -> str:
    """The interface that reaches this address. On the address's own host, the interface with it. Raises ValueError if there is none."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing: the system chooses a route, and with it an address of this host
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise ValueError(
            f"MASTER_ADDR={address} cannot be reached ({error.strerror}): set it to an address of the host of rank 0"
        ) from None
    for _, name in socket.if_nameindex():
        if own in (_ipv4(name), *_ipv6(name)):
            return name
    raise ValueError(f"the network interface with this host's address {own} was not found: set backend.interface to its name")


def _ipv4(interface: str) -> str | None:
    """The first IPv4 address of an interface; None if it has none, or the system does not report it as Linux does."""
    if sys.platform != "linux":
        return None
    import fcntl

    SIOCGIFADDR = 0x8915  # noqa: N806
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6(interface: str) -> list[str]:
    """The IPv6 addresses of an interface."""
    try:
        with open("/proc/net/if_inet6") as lines:
            rows = [line.split() for line in lines]
    except OSError:
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[-1] == interface]
