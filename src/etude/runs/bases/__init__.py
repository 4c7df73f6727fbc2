"""The base models that come with etude, by name: how each is made."""

from __future__ import annotations

from etude.runs.bases.base import Base
from etude.runs.bases.tiny import TINY
from etude.runs.bases.tiny_agent import TINY_AGENT

BASES: dict[str, Base] = {base.id: base for base in (TINY, TINY_AGENT)}

__all__ = ["BASES", "TINY", "TINY_AGENT", "Base"]
