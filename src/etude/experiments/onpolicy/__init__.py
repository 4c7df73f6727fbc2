"""Experiments of the claims of on-policy methods of control, one file per method."""
