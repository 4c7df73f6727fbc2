"""Experiments of the claims of methods that learn from preferences, one file per method."""
