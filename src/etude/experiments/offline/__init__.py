"""Experiments of methods that learn from logs."""
