"""`etude new`: a commented start of your own task, reward, method, environment or config."""

from __future__ import annotations


def new(kind: str, name: str) -> None:
    """Write a commented start into this folder, and say what to type next.

    Parameters
    ----------
    kind
        task, reward, method, environment or config.
    name
        What it is called, as in my-task: the file is my_task.py.
    """
    from etude.runs.new import new as run

    file, commands = run(kind, name)
    print(f"{file} is there. Next:")
    for command in commands:
        print(f"  {command}")
