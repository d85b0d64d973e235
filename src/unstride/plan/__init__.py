"""Phases, algorithm, tiles and work split: pure functions of (Problem, Machine)."""
