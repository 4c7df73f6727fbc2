"""What the reference is worth on a prompt: a small head on its frozen states, fitted to one completion of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etude.core.errors import ConfigError, DataError
from etude.core.fields import Count, Fraction, Positive
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.experience.scored import ANSWERS, SCORES, worth
from etude.methods.preference.a_lol.parts import VALUE
from etude.stages.chain import DeriveByPolicy

if TYPE_CHECKING:
    from etude.core.episodes import Problem
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy

HELD_BACK = 10
"""One of so many prompts is not fitted to: on these the best pass is chosen."""
BATCH, PROMPTS = 32, 64
"""Prompts that are learned from, and read, at a time."""
State = tuple[Tensor, Tensor]
"""States of prompts [B, T, H], and which of them there are [B, T]."""


class PromptValue(nn.Module):
    """V(x) = least + (most - least) sigmoid(w . attend(q; states of x) + b): attention by a learned query.

    Shapes: states [B, T, H] and mask [B, T] -> [B].

    Args:
        width: H. heads: of the attention. least, most: between which rewards lie.
        generator: draws weights and what is dropped, on the CPU.
        dropout: of the attention's weights, while it learns.
    """

    def __init__(
        self, width: int, heads: int, least: float, most: float, generator: torch.Generator, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.heads, self.least, self.most = heads, least, most
        self.generator, self.dropout = generator, dropout

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * width**-0.5)

        self.query, self.key, self.read = drawn(heads, width // heads), drawn(width, width), drawn(width, width)
        self.last, self.bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(()))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        split = (*states.shape[:2], self.heads, -1)
        keys, values = (states @ self.key).view(split), (states @ self.read).view(split)
        logits = (keys * self.query).sum(-1) / keys.shape[-1] ** 0.5  # [B, T, heads]
        weights = logits.masked_fill(~mask[..., None], -torch.inf).softmax(1)
        if self.training and self.dropout:
            kept = torch.rand(weights.shape, generator=self.generator) >= self.dropout
            weights = weights * kept.to(weights.device) / (1 - self.dropout)
        said = (weights[..., None] * values).sum(1).flatten(1)
        value: Tensor = self.least + (self.most - self.least) * (said @ self.last + self.bias).sigmoid()
        return value


class Appraise(DeriveByPolicy):
    """Rows of scored answers with V(x), what the policy that it begins from is worth on their prompts (A-LoL, 3.1).

    The first `validation` problems have one completion of that policy each, scored by the task, to which `PromptValue`
    on its frozen last states is fitted by the squared error; the pass that is best on a tenth, held back, stays.
    Rows are made of the `problems` behind these: `prompt`, `responses`, `scores` and `value`.

    Args:
        validation: problems whose completions are sampled.
        passes: over them, in batches of 32.
        heads: of the head's attention; has to divide the model's width.
        lr: of Adam.
        temperature: that completions are sampled with.

    Raises: DataError for problems without scored answers, or fewer than 10 to sample.

    >>> Appraise(called="appraised", problems=3600).validation
    400
    """

    validation: Count = 400
    passes: Count = 10
    heads: Count = 8
    lr: Positive = 3e-3
    dropout: Fraction = 0.1
    temperature: Positive = 1.0

    def rows_by(
        self, problems: Sequence[Problem], task: LanguageTask, policy: LanguagePolicy, seed: int
    ) -> list[dict[str, Any]]:
        chosen, behind = problems[: self.validation], problems[self.validation :]
        if len(chosen) < HELD_BACK or not behind:
            raise DataError(
                f"{self.called} has {len(problems)} problems of {task.id}, of which {self.validation} are for values: "
                f"that leaves none to learn from, or fewer than {HELD_BACK} to sample; set problems and validation."
            )
        scored = [self._scored(problem) for problem in behind]
        value = self.fitted(chosen, task, policy, seed)
        with torch.no_grad():
            found = value(*states_of(behind, task, policy)).tolist()
        return [
            {"prompt": p.prompt, ANSWERS: answers, SCORES: scores, VALUE: v}
            for p, (answers, scores), v in zip(behind, scored, found)
        ]

    def _scored(self, problem: Problem) -> tuple[list[str], list[float]]:
        answers, scores = problem.info.get(ANSWERS), worth(problem.info)
        if not answers or scores is None or len(scores) != len(answers):
            raise DataError(
                f"Problem {problem.id!r} has no answers with scores: give data files the columns {ANSWERS!r} and "
                f"{SCORES!r}, a list each, or choose a task that has them, like 'digest'."
            )
        return list(answers), [float(score) for score in scores]

    def fitted(self, problems: Sequence[Problem], task: LanguageTask, policy: LanguagePolicy, seed: int) -> PromptValue:
        """V, fitted to one completion of each of these problems."""
        context = Context(task, policy, Stream(seed).split("appraise"), max_tokens=task.max_tokens)
        sampled = Groups(size=1, temperature=self.temperature).collect(problems, context)
        paid = torch.tensor([episode.reward for episode in sampled], device=policy.device)
        random, least = Stream(seed).split("value").torch, min(0.0, float(paid.min()))
        value = PromptValue(policy.width, self.heads, least, float(paid.max()), random, self.dropout).to(policy.device)
        best = fit(value, states_of(problems, task, policy), paid, self.passes, self.lr, random)
        value.load_state_dict(best)
        return value.eval()

    def check(self) -> None:
        super().check()
        if self.problems <= self.validation:
            raise ConfigError(
                f"Appraise.problems are those of values and those to learn from: with validation={self.validation} "
                f"they must be more, got {self.problems}."
            )


@torch.no_grad()
def states_of(problems: Sequence[Problem], task: LanguageTask, policy: LanguagePolicy) -> State:
    """The policy's last states on prompts, as they are shown."""
    from etude.core.task import SingleTurn
    from etude.policies.chat import opening
    from etude.policies.showing import shown

    backbone = policy.backbone(policy.merged())
    opened = (opening(shown(SingleTurn(task).reset(p, 0), task, policy), policy, task.add_bos) for p in problems)
    tokens = [[t for segment in segments for t in segment] for segments in opened]
    longest = max(map(len, tokens))
    ids = torch.tensor([t + [0] * (longest - len(t)) for t in tokens], device=policy.device)
    mask = torch.tensor([[True] * len(t) + [False] * (longest - len(t)) for t in tokens], device=policy.device)
    found = [
        backbone(input_ids=i, attention_mask=m, use_cache=False).last_hidden_state.float()
        for i, m in zip(ids.split(PROMPTS), mask.split(PROMPTS))
    ]
    return torch.cat(found), mask


def fit(
    value: PromptValue, states: State, paid: Tensor, passes: int, lr: float, random: torch.Generator
) -> dict[str, Tensor]:
    """Weights of the pass with the least squared error on every tenth prompt, of passes over the others."""
    held = torch.arange(len(paid), device=paid.device) % HELD_BACK == 0
    learned = (~held).nonzero()[:, 0]
    optimizer, best, least = torch.optim.Adam(value.parameters(), lr=lr), value.state_dict(), float("inf")
    for _ in range(passes):
        value.train()
        for rows in learned[torch.randperm(len(learned), generator=random).to(learned.device)].split(BATCH):
            optimizer.zero_grad()
            ((value(states[0][rows], states[1][rows]) - paid[rows]) ** 2).mean().backward()
            optimizer.step()
        with torch.no_grad():
            error = float(((value.eval()(states[0][held], states[1][held]) - paid[held]) ** 2).mean())
        if error < least:
            least, best = error, {k: v.clone() for k, v in value.state_dict().items()}
    return best
