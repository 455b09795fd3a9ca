"""Decisions of a method: frozen dataclasses with pure functions, one published rule per class. No rule depends on the backend."""
