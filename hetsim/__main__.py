"""`python -m hetsim` is `hetsim`."""

from hetsim.run import main

if __name__ == "__main__":
    main()
