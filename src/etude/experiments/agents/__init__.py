"""Experiments of the claims of methods with verifiable rewards, one file per method."""
