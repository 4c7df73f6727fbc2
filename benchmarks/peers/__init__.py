"""Claims done again with other libraries: `benchmarks/claims_vs_peers.py`."""
