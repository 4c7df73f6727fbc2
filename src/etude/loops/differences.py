"""Invariant 4: whether the rewards of completions that are compared with each other differ."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from etude.core.batches import TokenBatch

FIRST_STEPS = 3
"""Steps from the start without a difference inside any group after which the run says so."""
FLAT_STEPS = 20
"""Steps in a row with no difference between any rewards after which it does."""
METRIC = "informative_groups"
CAUSES = (
    "Likely causes: the task is too hard or too easy for this model, the reward looks for a format that the "
    "completions do not have, or max_tokens cuts them."
)


class Differences:
    """Watches the rewards of a run's samples, step by step; its counters are saved with the loop's.

    What counts is what the parts that judge outcomes said: a penalty on length differs from row to row and tells
    nothing about the task. Where no problem has two samples, all samples of a step are one group.
    """

    def __init__(self) -> None:
        self.steps, self.flat_steps, self.differed = 0, 0, False
        self.components: dict[str, bool] = {}
        """Whether each component of what judges has differed inside a group; of the first steps."""

    def watch(self, batches: Sequence[TokenBatch], parts: Sequence[Any]) -> float:
        """Share of a step's groups in which rewards differ; warns when there has been none for too long."""
        batches = [b.per_episode() for b in batches]
        values = [_judged(b, parts) for b in batches]
        every, share = torch.cat(values), informative(values, [b.group[_known(b)].cpu() for b in batches])
        if not len(every) and any(b.unfinished is not None for b in batches):
            return share  # all go on in a later step, and say nothing yet
        flat = bool((every == every[:1]).all())
        self.steps, self.flat_steps = self.steps + 1, self.flat_steps + 1 if flat else 0
        self.differed |= share > 0
        self._watch_components(batches, parts)
        now = f"now {float(every[0]):g}" if len(every) else "no completion has one"
        if self.steps == FIRST_STEPS and not self.differed:
            warnings.warn(
                f"In the first {FIRST_STEPS} steps no two completions of one problem had different rewards ({now}), so "
                f"nothing can be learned from comparing them. {CAUSES}",
                stacklevel=3,
            )
        if self.flat_steps == FLAT_STEPS and self.differed:
            warnings.warn(
                f"All rewards of a step were equal in each of the last {FLAT_STEPS} steps ({now}), so nothing can be "
                f"learned from comparing them. {CAUSES}",
                stacklevel=3,
            )
        return share

    def _watch_components(self, batches: Sequence[TokenBatch], parts: Sequence[Any]) -> None:
        """Say, after the first steps, which components of the rewards are inert while others differ."""
        if self.steps > FIRST_STEPS:
            return
        for name in _components(batches, parts):
            paid = [_paid(batch, name) for batch in batches]
            share = informative([v for v, _ in paid], [g for _, g in paid])
            self.components[name] = self.components.get(name, False) or share > 0
        if self.steps < FIRST_STEPS or not self.differed:
            return
        for name in (name for name, differed in self.components.items() if not differed):
            warnings.warn(
                f"The component {name!r} of the reward is inert: in the first {FIRST_STEPS} steps no two completions "
                "of one problem differed in it, so it says nothing about which is better. Mend it, or leave it out.",
                stacklevel=4,
            )

    def state_dict(self) -> dict[str, Any]:
        """The counters."""
        return {
            "steps": self.steps, "flat_steps": self.flat_steps, "differed": self.differed,
            "components": dict(self.components),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`; checkpoints of older versions have `flat_steps` alone."""
        self.flat_steps = state["flat_steps"]
        self.steps, self.differed = state.get("steps", FIRST_STEPS), state.get("differed", True)
        self.components = dict(state.get("components", {}))


def never_differed(records: Iterable[Mapping[str, Any]]) -> str | None:
    """What to say at the end of a run none of whose steps (lines of `metrics.jsonl`) had rewards that differ."""
    shares = [(r[METRIC], r.get("reward")) for r in records if METRIC in r]
    if not shares or any(share > 0 for share, _ in shares):
        return None
    reward = shares[-1][1]
    now = "no completion had a reward" if reward is None else f"mean reward {reward:g} in the last step"
    steps = f"{len(shares)} step{'s' * (len(shares) > 1)}"
    return f"Nothing was learned: in {steps} no two completions of one problem had different rewards ({now}). {CAUSES}"


def informative(values: Sequence[Tensor], groups: Sequence[Tensor]) -> float:
    """Share of groups, of at least two rows, whose rewards differ; 0 if there are no rewards.

    Args:
        values, groups: rewards and group [B] of each of several batches, whose groups are apart.

    >>> informative([torch.tensor([0.0, 1.0, 1.0, 1.0])], [torch.tensor([0, 0, 1, 1])])
    0.5
    """
    pairs = [(v, g) for v, g in zip(values, groups) if len(v)]
    split = [v[g == k] for v, g in pairs for k in torch.unique(g)]
    compared = [v for v in split if len(v) > 1] or [torch.cat([v for v, _ in pairs])] if pairs else []
    return sum(bool((v != v[0]).any()) for v in compared) / max(1, len(compared))


def _judged(batch: TokenBatch, parts: Sequence[Any]) -> Tensor:
    """[n] outcome of each row that the policy sampled to its end; the whole score if no part judges outcomes."""
    if not any(getattr(p, "judges", False) for p in parts):
        return batch.scores[_known(batch)].cpu().double()
    own = zip(batch.episodes, _known(batch).tolist())
    return torch.tensor([e.outcome for e, mine in own if mine], dtype=torch.float64)


def _known(batch: TokenBatch) -> Tensor:
    """[B] True on rows that the policy sampled, to their end."""
    return batch.sampled & batch.finished


def _components(batches: Sequence[TokenBatch], parts: Sequence[Any]) -> list[str]:
    """The columns of what judges outcomes, in order; a penalty may well be the same for all."""
    others = {getattr(p, "column", "") or p.name for p in parts if not getattr(p, "judges", False)}
    named = dict.fromkeys(n for b in batches for e in b.episodes for n in e.scores)
    return [n for n in named if n not in others]


def _paid(batch: TokenBatch, name: str) -> tuple[Tensor, Tensor]:
    """A component of the rows that the policy sampled and that it applies to, and their groups."""
    rows = [i for i, e in enumerate(batch.episodes) if name in e.scores and batch.sampled[i]]
    values = [batch.episodes[i].scores[name] for i in rows]
    return torch.tensor(values, dtype=torch.float64), batch.group.cpu()[torch.tensor(rows, dtype=torch.long)]
