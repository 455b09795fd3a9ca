"""The classes and configs that ship with hetsim, and the other code that a config may name."""
