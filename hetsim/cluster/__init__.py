"""The hardware that a method runs on: nodes, links and faults, and the seconds of gradients, updates, messages and collectives."""

from hetsim.cluster.faults import Faults, Outages
from hetsim.cluster.model import Cluster, Network, NodeSpec, Path, Server, SlowSpells
from hetsim.cluster.network.racks import Rack

__all__ = ["Cluster", "Faults", "Network", "NodeSpec", "Outages", "Path", "Rack", "Server", "SlowSpells"]
