"""What must hold of the sandbox: cases that anybody can run (`etude check sandbox`), attacks and honest programs.

`forging.py`, `limits.py`, `walls.py` and `words.py` have the cases, `around.py` those that look at this machine from
outside, `suite.py` runs them. A case is a program and what must come of it.
"""
