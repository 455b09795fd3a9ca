"""The version of hetsim. `hetsim.__version__` is the same; modules that hetsim itself imports read it here."""

__version__ = "0.2.0"
