"""What logs say of every member of a run, so that runs can be told apart by it: FQE of many policies at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from etude.core.streams import Stream
from etude.evaluation.off_policy.episodes import Episodes, Estimate
from etude.evaluation.off_policy.fqe import FQE, Counted, Progress, uncounted
from etude.evaluation.off_policy.policies import Judged
from etude.evaluation.off_policy.q_rows import Acts
from etude.experience.logs.table import Logs

AT_ONCE, ROWS = 32, 1 << 19
"""Policies that are fitted together, and rows that they have together, at most."""


def with_members(
    first: dict[str, Estimate], others: Sequence[Judged], logs: Logs, gammas: Sequence[float], seed: int,
    fqe: FQE | None = None, counted: Counted = uncounted,
) -> dict[str, Estimate]:  # fmt: skip
    """Estimates of a run's first member by FQE, with the others' beside it, each from all episodes.

    Args:
        first: 'fqe' and 'fqe/deterministic', the same where it does one thing in each state.
        gammas: the discount of each of the others.
        counted: shows how far the fits are.

    Returns: these two; their reasons say whose numbers mean nothing.
    """
    found = dict[str, Estimate]()
    for name, likeliest in {"fqe": False, "fqe/deterministic": True}.items():
        own = first[name]
        if likeliest and own is first["fqe"]:
            found[name] = found["fqe"]
            continue
        each = [(own.value, own.reason)]
        each += _fitted(others, logs, gammas, seed, likeliest, fqe or FQE(), counted) if others else []
        reason = _doubt([reason for _, reason in each]) if others else own.reason
        found[name] = replace(own, members=tuple(value for value, _ in each), reason=reason)
    return found


def _doubt(reasons: Sequence[str]) -> str:
    """Of which members it means nothing, and why of the first of them."""
    doubted = [i for i, reason in enumerate(reasons) if reason]
    if not doubted:
        return ""
    whose = f"member{'s' * (len(doubted) > 1)} {', '.join(map(str, doubted))} (of {len(reasons)})"
    return f"numbers of {whose} mean nothing; member {doubted[0]}: {reasons[doubted[0]]}"


def _fitted(
    policies: Sequence[Judged], logs: Logs, gammas: Sequence[float], seed: int, likeliest: bool, fqe: FQE,
    counted: Counted,
) -> list[tuple[float, str]]:  # fmt: skip
    """Of each policy what FQE says from all episodes, and why that means nothing."""
    found: dict[int, tuple[float, str]] = {}
    size = max(1, min(AT_ONCE, ROWS // len(logs.rewards)))
    alike = [[i for i, own in enumerate(gammas) if own == gamma] for gamma in dict.fromkeys(gammas)]
    parts = [own[k : k + size] for own in alike for k in range(0, len(own), size)]
    with counted(len(parts) * fqe.updates) as progress:
        for part in parts:
            several = [policies[i] for i in part]
            told = _together(several, logs, gammas[part[0]], seed, likeliest, fqe, progress)
            found.update(zip(part, told, strict=True))
    return [found[i] for i in range(len(policies))]


def _together(
    policies: Sequence[Judged], logs: Logs, gamma: float, seed: int, likeliest: bool, fqe: FQE, progress: Progress
) -> list[tuple[float, str]]:
    """A population of which each member has rows of its own, where its policy acts, and counts no others."""
    stream, several = Stream(seed, ("judge",)), len(policies)
    acts = [policy.on(logs, stream.split("actions").torch, likeliest).acts for policy in policies]
    episodes = Episodes.of(logs)
    counts = np.kron(np.eye(several, dtype=np.int64), np.ones((1, episodes.count), np.int64))
    return fqe.fit(episodes.repeated(several), _joined(acts), counts, gamma, stream, progress).each()


def _joined(acts: Sequence[Acts]) -> Acts:
    """Rows of the first, of the second, and so on."""
    names = [f.name for f in fields(Acts) if f.name != "choices"]
    tables: Any = {name: torch.cat([getattr(each, name) for each in acts]) for name in names}
    return Acts(**tables, choices=acts[0].choices)
