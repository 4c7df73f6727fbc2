"""Running code that nobody has read: one program in one locked process, and plain data back.

`inside.py` is what runs in there, `jail.py` says with which walls, `slot.py` is one such process, `pool.py` keeps some
that wait, `probe.py` tries the walls before anything else may run.
"""
