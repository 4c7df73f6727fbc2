"""What an update learns from: rows of a player and the method that it follows, minibatch by minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.rows import split_groups
from etude.core.streams import Stream
from etude.loops.movement import Movement
from etude.loops.tally import Tally
from etude.optimizers.model import Halves
from etude.optimizers.population import Metrics

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod
    from etude.loops.update import Updater


@dataclass
class Lesson:
    """Credited rows of one player.

    Args:
        name: stands before what is reported of them; '' where one player learns.
        row_loss: [B] each row's objective, the last time that it was passed over, where a part asks for it.
    """

    method: CompleteTokenMethod
    batch: TokenBatch
    name: str = ""
    row_loss: Tensor | None = None

    def begin(self) -> None:
        """An update begins."""
        self.row_loss = torch.zeros_like(self.batch.scores) if "row_loss" in self.method.needs() else None

    def pieces(self, stream: Stream) -> list[Tensor]:
        """Row numbers of an epoch's minibatches, of whole groups, in an order that the stream decides."""
        order = stream.numpy if self.method.minibatches > 1 else None
        return split_groups(self.batch, self.method.minibatches, order)

    def at(self, rows: Tensor) -> Piece:
        """The part of it that is in one minibatch."""
        loss = None if self.row_loss is None else self.row_loss[rows]
        return Piece(self, rows, self.batch.rows(rows), loss)

    def end(self) -> None:
        """The update is over."""
        if self.row_loss is not None:
            self.batch.row_loss = self.row_loss


@dataclass
class Piece:
    """A lesson's rows in one minibatch."""

    lesson: Lesson
    rows: Tensor
    batch: TokenBatch
    row_loss: Tensor | None

    @property
    def method(self) -> CompleteTokenMethod:
        """What they are learned by."""
        return self.lesson.method

    @property
    def name(self) -> str:
        """The lesson's."""
        return self.lesson.name

    def close(self) -> None:
        """Keep what was found out about them."""
        if self.row_loss is not None and self.lesson.row_loss is not None:
            self.lesson.row_loss[self.rows] = self.row_loss


def taught(updater: Updater, steps: Sequence[Sequence[Lesson]], step: int, stream: Stream) -> dict[str, float]:
    """Let a policy and its learners learn from lessons, one group of them after another."""
    learners, budget, metrics = updater.learners, updater.budget, dict[str, float]()
    waits = learners.critic is not None and learners.critic.leads
    for number, lessons in enumerate(steps):
        for lesson in lessons:
            metrics |= learners.run(lesson.batch, step, "before", stream, budget)
        found = {} if waits else updater.run_together(lessons, step, stream, fresh=number == 0)
        metrics |= {k if not number else f"{label(lessons[0].name, k)}{k}": v for k, v in found.items()}
        for lesson in lessons:
            metrics |= learners.run(lesson.batch, step, "after", stream, updater.budget)
    return metrics


def label(name: str, metric: str = "") -> str:
    """What stands before a metric of a player, unless it stands there already."""
    return f"{name}/" if name and not metric.startswith(f"{name}/") else ""


class Minibatch:
    """One minibatch as what takes the policy's steps sees it (`optimizers/model.py`)."""

    def __init__(self, updater: Updater, pieces: Sequence[Piece], fresh: bool, tally: Tally) -> None:
        self.updater, self.pieces, self.fresh, self.tally = updater, pieces, fresh, tally
        self.batch = pieces[0].batch

    def gradient(self) -> Metrics:
        """Leave the gradient in the parameters, in smaller micro-batches if memory runs out."""
        done, attempt = False, Tally()
        with suppress(torch.OutOfMemoryError):
            for piece in self.pieces:
                self._add(piece, attempt)
            done = True
        if not done:  # outside the handler, whose traceback would keep the tensors alive
            longest = max(self.pieces, key=lambda piece: int(piece.batch.lengths.max()))
            self.updater.halve(longest.batch, self.tally)
            return self.gradient()
        self.tally.merge(attempt)
        self.movement = Movement(self.updater.stepper.parameters)
        return {}

    def _add(self, piece: Piece, attempt: Tally) -> None:
        """Add the gradient of one player's rows."""
        own = Tally() if piece.name else attempt
        self.updater.row_loss = piece.row_loss
        self.updater.accumulate(piece.method, piece.batch, self.fresh, own)
        if piece.name:
            attempt.merge(own, f"{piece.name}/")

    def halves(self) -> Halves | None:
        return self.updater.halves()
