"""hetsim: data-parallel training on machines of unequal speed, in simulation first and then for real."""

__version__ = "0.1.0"
