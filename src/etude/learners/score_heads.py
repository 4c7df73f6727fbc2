"""Small scorers on frozen states: an ensemble that learns in seconds whatever feedback there is on answers.

A language model reads an answer once; its states, averaged, are all that is kept of it. What is learned of them are a
few multilayer perceptrons, trained together as the members of a population, each with weights and batches of its own.
Feedback is one class for each kind, and the losses are those of value heads (`objectives/scorers.py`): a study of
reward models may exchange any of them, and asks `ScoreHeads` in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from etude.core.episodes import Episode
from etude.core.population import FlatParameters, Member, Population
from etude.core.rows import to_batch
from etude.core.step_slots import Network
from etude.learners.state import Value
from etude.objectives.scorers import label_loss, ranking_loss
from etude.optimizers.adam import AdamW
from etude.optimizers.population import Metrics
from etude.policies.control.networks import MLP, Linear

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

TOKENS = 8192
"""Padded tokens that are read at a time."""
Scores = Callable[[Tensor], Tensor]
"""Of states [M, ..., H] what each of M heads says of its own, [M, ...]."""


# Feedback


class Feedback:
    """What somebody said of answers. `rows` counts what was said."""

    @property
    def rows(self) -> int:
        raise NotImplementedError

    def loss(self, scores: Scores, chosen: Tensor) -> Tensor:
        """[M] mean losses of M heads on rows [M, B] of each one's own."""
        raise NotImplementedError


@dataclass(frozen=True)
class Compared(Feedback):
    """Which of two answers is better, by Bradley and Terry: -log sigmoid(r(better) - r(worse)).

    Shapes: better, worse [N, H], states.
    """

    better: Tensor
    worse: Tensor

    @property
    def rows(self) -> int:
        return len(self.better)

    def loss(self, scores: Scores, chosen: Tensor) -> Tensor:
        return -logsigmoid(scores(self.better[chosen]) - scores(self.worse[chosen])).mean(1)

    def head(self, count: int) -> Compared:
        """The first so many pairs."""
        return Compared(self.better[:count], self.worse[:count])


@dataclass(frozen=True)
class Ranked(Feedback):
    """The order of K answers, by Plackett and Luce. Shapes: states [N, K, H], the best one's first."""

    states: Tensor

    @property
    def rows(self) -> int:
        return len(self.states)

    def loss(self, scores: Scores, chosen: Tensor) -> Tensor:
        return ranking_loss(scores(self.states[chosen])).mean(1)


@dataclass(frozen=True)
class Labelled(Feedback):
    """Good answers and bad ones, as many of each: cross-entropy, and the log-odds are the reward.

    Chosen and rejected answers of pairs (the order-consistent classifier), or demonstrations and samples (the
    discriminator of adversarial imitation).

    Shapes: good, bad [N, H], states.
    """

    good: Tensor
    bad: Tensor

    @property
    def rows(self) -> int:
        return len(self.good)

    def loss(self, scores: Scores, chosen: Tensor) -> Tensor:
        good, bad = scores(self.good[chosen]), scores(self.bad[chosen])
        return (label_loss(good, torch.ones_like(good) > 0) + label_loss(bad, torch.zeros_like(bad) > 0)).mean(1) / 2


@dataclass(frozen=True)
class Worked(Feedback):
    """Questions, each with a prompt, and whether a frozen model was right by it: cross-entropy (prompt evaluation).

    Asked about other questions, the heads choose among prompts (`ScoreHeads.best`) and the model is not asked
    (arXiv:2309.06553). Shapes: states [N, H] of question and prompt together; right [N] of 0 and 1.
    """

    states: Tensor
    right: Tensor

    @property
    def rows(self) -> int:
        return len(self.states)

    def loss(self, scores: Scores, chosen: Tensor) -> Tensor:
        return label_loss(scores(self.states[chosen]), self.right[chosen] > 0).mean(1)


@dataclass(frozen=True)
class Rated(Feedback):
    """What each answer was rated: squared error. Shapes: states [N, H], ratings [N]."""

    states: Tensor
    ratings: Tensor

    @property
    def rows(self) -> int:
        return len(self.states)

    def loss(self, scores: Scores, chosen: Tensor) -> Tensor:
        return ((scores(self.states[chosen]) - self.ratings[chosen]) ** 2).mean(1)


# Heads


class ScoreHeads:
    """M perceptrons that score states, which they see with mean 0 and deviation 1.

    Args:
        seen: [N, H] states by which moments are known.
        members: M.
        seed: of weights and batches.
        network: of each, before its last layer.
        optimizer: of a population.

    >>> torch.manual_seed(0) and None
    >>> x = torch.randn(64, 3)
    >>> heads = ScoreHeads(x, members=2, seed=0)
    >>> tuple(heads(x).shape), tuple(heads.mean(x.view(4, 16, 3)).shape)
    ((2, 64), (4, 16))
    """

    def __init__(
        self, seen: Tensor, *, members: int = 10, seed: int = 0,
        network: Network = MLP(hidden=(64, 64), activation="relu"),  # noqa: B008  # parts are frozen
        optimizer: AdamW = AdamW(lr=1e-3, weight_decay=0.01),  # noqa: B008
    ) -> None:  # fmt: skip
        self.shift, self.scale = seen.mean(0), seen.std(0, correction=0).clamp(min=1e-6)
        self.population = Population([Member(seed)]).each(members, "heads")
        body, width = network.build((seen.shape[1],), self.population, "scores")
        self.network = Value(body, Linear(self.population, "scores.head", width, 1, gain=1.0)).to(seen.dtype)
        self.parameters = FlatParameters({"scores": self.network})
        self.stepper = optimizer.population(self.parameters)
        self.lessons = 0

    def scores(self, states: Tensor) -> Tensor:
        """[M, ...] of states [M, ..., H], with gradient."""
        flat = ((states - self.shift) / self.scale).reshape(len(states), -1, states.shape[-1])
        found: Tensor = self.network(flat)
        return found.view(states.shape[:-1])

    @torch.no_grad()
    def __call__(self, states: Tensor) -> Tensor:
        """[M, ...] what each head says of states [..., H]."""
        return self.scores(states.expand(self.population.size, *states.shape))

    def mean(self, states: Tensor) -> Tensor:
        """[...] the mean over heads of states [..., H]: the reward."""
        return self(states).mean(0)

    def best(self, states: Tensor) -> Tensor:
        """[...] which of P candidates, as states [..., P, H], has the highest reward."""
        return self.mean(states).argmax(-1)

    def learn(self, feedback: Feedback, updates: int = 300, batch: int = 128) -> ScoreHeads:
        """So many steps on rows that each head draws for itself, with replacement."""
        size = (updates, min(batch, feedback.rows))
        drawn = self.population.draw(
            "rows", self.lessons, of=lambda g: torch.randint(feedback.rows, size, generator=g)
        )  # fmt: skip
        self.lessons += 1
        for step in range(updates):
            self.stepper.step(_Lesson(self, feedback, drawn[:, step]), 1.0)
        return self


@dataclass
class _Lesson:
    """A minibatch of every head's own, as an optimizer sees it."""

    heads: ScoreHeads
    feedback: Feedback
    rows: Tensor
    batch: None = None

    def gradient(self) -> Metrics:
        loss = self.feedback.loss(self.heads.scores, self.rows)
        self.heads.parameters.differentiate(loss)
        return {"loss": loss.detach()}


# States


@torch.no_grad()
def mean_states(reader: LanguagePolicy, episodes: Sequence[Episode]) -> Tensor:
    """[N, H] the mean over an answer's tokens of the last states that lead up to them, the end token's included."""
    from etude.policies.micro_batches import micro_batches

    batch = to_batch(episodes, reader.tokenizer.pad_token_id, 1.0, reader.device)
    found = torch.zeros(len(batch), reader.config.hidden_size, device=reader.device)
    for piece in micro_batches(reader, batch, TOKENS):
        rows = batch.rows(piece, trim=True)
        hidden = reader.evaluate(rows, {"hidden"}).hidden
        assert hidden is not None
        mask = rows.action_mask[..., None]
        found[piece] = ((hidden * mask).sum(1) / mask.sum(1).clamp(min=1)).to(found)
    return found
