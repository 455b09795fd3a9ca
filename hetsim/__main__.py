"""`python -m hetsim` is `hetsim`."""

from hetsim.cli.main import main

if __name__ == "__main__":
    main()
