"""Decisions of a method: frozen dataclasses with pure functions, one published rule per class. None knows in which world it runs."""
