"""`python -m hetsim` is `hetsim`."""

from hetsim.cli.scripts import hetsim

if __name__ == "__main__":
    hetsim()
