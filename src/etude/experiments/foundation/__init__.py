"""Experiments of the claims of the methods that others are written from, one file per method."""
