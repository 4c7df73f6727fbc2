"""Experiments of the claims of methods for language agents, one file per method."""
