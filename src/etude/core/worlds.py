"""Worlds: what a task is made of, which decides which loops can train on it."""

from __future__ import annotations

from enum import StrEnum


class World(StrEnum):
    """Where a method learns. A task says its own; a loop declares those that it serves."""

    LANGUAGE = "language"  # episodes are text, policies are language models
    ENUMERABLE = "enumerable"  # a few dozen responses to a few prompts: expectations are sums
    CONTROL = "control"  # observations and actions, a population of small networks
