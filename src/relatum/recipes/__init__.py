"""Wiring: a recipe is a TOML file and a short build function, never a loop of its own."""
