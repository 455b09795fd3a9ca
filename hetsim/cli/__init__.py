"""How hetsim is started. The only package that knows Hydra."""
