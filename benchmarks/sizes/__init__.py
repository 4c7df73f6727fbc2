"""The same effects on models of several sizes: cases, runs, rank correlations and the page of `across_sizes.py`."""
