"""Logs: steps that others took, read from files, checked, and put into one table (`reading.py` opens any of them)."""
