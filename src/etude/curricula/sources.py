"""What problems can be made of other problems."""

from __future__ import annotations

import re

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.part import Part


class Source(Part, abstract=True):
    """Makes a problem of one of the task's, which the task can score: its answer or its tests say what is right."""

    slot = "source"

    def make(self, problem: Problem, random: Generator) -> Problem | None:
        """A new problem, whose id says what it was made of; None where nothing can be made of this one."""
        raise NotImplementedError


def put(template: str, **texts: str) -> str:
    """The template with texts in the place of their names in braces; other braces stay.

    >>> put("{program} # {1}", program="x")
    'x # {1}'
    """
    return re.sub(r"\{(\w+)\}", lambda name: texts.get(name[1], name[0]), template)
