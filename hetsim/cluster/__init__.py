"""What a method runs on: nodes, links and faults, and the seconds that a gradient, an update, a message or a collective takes on them."""

from hetsim.cluster.model import Cluster, Faults, Network, Node, Outages, Path, Rack, Server, SlowSpells

__all__ = ["Cluster", "Faults", "Network", "Node", "Outages", "Path", "Rack", "Server", "SlowSpells"]
