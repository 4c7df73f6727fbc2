"""Publicly reported faults of reinforcement learning that said nothing: `etude museum`, `docs/museum.md`.

Each file has a tuple `exhibits` of one fault, or of a few that are near kin; `tiny.py` has what their runs share.
"""
