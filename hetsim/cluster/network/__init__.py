"""The network's links: seconds of collectives, links that a message crosses, fair shares and slowdowns."""
