"""Decisions: pure, frozen, one published rule per class. Nothing here knows which world it runs in."""
