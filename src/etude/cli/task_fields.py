"""Flags that are fields of a task, the same for every verb that takes a task."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from cyclopts import Parameter

Fields = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, consume_multiple=True)]
"""`--set a=1 b=2`, or `--set a=1 --set b=2`."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TaskFields:
    """What a task is told by names of its own.

    Parameters
    ----------
    columns
        Names of a data file's columns where it calls them something else, as in prompt=question,answer=solution.
    answer
        How a data file's answers are found in completions: auto, boxed, last-number, choice or exact.
    skip_bad_rows
        Leave out rows of a data file that cannot be read.
    chat
        Whether text is shown through the model's chat template: auto (if it has one), always or never.
    system
        A file with the system's message.
    template_arguments
        What the chat template is given besides, as in enable_thinking=false.
    tools
        What the model can call: my_tools.py (its functions), my_tools.py:find, calculator, search:FOLDER of texts,
        python (in a sandbox), sql:FILE; several with commas.
    """

    columns: str | None = None
    answer: str | None = None
    skip_bad_rows: Annotated[bool, Parameter(negative=(), show_default=False)] = False
    chat: str | None = None
    system: str | None = None
    template_arguments: str | None = None
    tools: str | None = None

    def given(self) -> dict[str, Any]:
        """Those that were said, by name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name))}


NOTHING = TaskFields()
