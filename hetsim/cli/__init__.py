"""The commands of hetsim. The only package that knows Hydra."""
