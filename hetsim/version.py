"""The version of hetsim, also available as `hetsim.__version__`. hetsim's own modules read it here."""

__version__ = "0.2.0"
