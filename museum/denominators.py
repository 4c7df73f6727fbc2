"""Losses that are averaged over something else than the whole minibatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from etude_museum.tiny import language
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.evaluation.exhibits import Exhibit, Report
from etude.loops.losses import Term
from etude.loops.update import Updater
from etude.policies.micro_batches import micro_batches

ANSWER = "away from those that they have in the whole minibatch"


def cut() -> Iterator[Mapping[str, float]]:
    """Three steps in micro-batches of a few rows."""
    return language(micro_tokens=80)


def _mean(values: Tensor, batch: TokenBatch) -> Term:
    return Term(values, (values * batch.action_mask).sum() / batch.action_mask.sum())


def _without_cut_rows(values: Tensor, batch: TokenBatch) -> Term:
    assert batch.shares is not None
    ended = torch.tensor([e.stop.name == "END_OF_TEXT" for e in batch.episodes])
    return Term(values, (values * torch.where(batch.action_mask, batch.shares, 0.0))[ended].sum())


def _all_but_the_last(*given: Any) -> Iterator[Tensor]:
    yield from list(micro_batches(*given))[:-1]


@contextmanager
def divided_again() -> Iterator[None]:
    """What is normalised already is divided by the number of micro-batches too."""
    original = Updater._loss

    def loss(self: Updater, *given: Any) -> Tensor:
        return original(self, *given) / 4

    with mock.patch.object(Updater, "_loss", loss):
        yield


exhibits = (
    Exhibit(
        id="mean-of-means",
        kind="reductions",
        report=Report(thread="huggingface/blog#2414", title="Gradient accumulation", pull=True),
        says="Each micro-batch was averaged over its own tokens, so short ones counted more: with accumulation "
        "everybody's loss was another one than without.",
        mechanism="the loss of a micro-batch is the mean over its own tokens.",
        inject=lambda: mock.patch("etude.loops.losses._weighted", _mean),
        run=cut,
        expect=ANSWER,
    ),
    Exhibit(
        id="divided-twice",
        kind="reductions",
        report=Report(
            thread="unslothai/unsloth-zoo#1023",
            title="Reconcile grad-accum loss normalization in _unsloth_get_batch_samples",
            pull=True,
        ),
        says="Two places each divided by the number of micro-batches: loss and gradient shrank with every one more, as "
        "if the learning rate did.",
        mechanism="a loss that is normalised over the minibatch is divided by 4 once more.",
        inject=divided_again,
        run=cut,
        expect=ANSWER,
    ),
    Exhibit(
        id="masked-but-counted",
        kind="reductions",
        report=Report(
            thread="huggingface/trl#6439", title="Fix GRPO truncated-completion loss normalization", pull=True
        ),
        says="Completions that were cut left the numerator of the loss and stayed in its denominator: the more were "
        "cut, the smaller every gradient.",
        mechanism="rows that a limit cut are zeroed after the shares of all rows have been computed.",
        inject=lambda: mock.patch("etude.loops.losses._weighted", _without_cut_rows),
        run=cut,
        expect=ANSWER,
    ),
    Exhibit(
        id="last-rows-dropped",
        kind="reductions",
        report=Report(
            thread="huggingface/trl#6092", title="Add packing-aware dynamic batching to AsyncGRPO", pull=True
        ),
        says="What was left when the rows ran out filled no micro-batch, and was thrown away: it was found in review "
        "that some completions were sampled and scored, and never trained on.",
        mechanism="the last micro-batch is never asked for.",
        inject=lambda: mock.patch("etude.loops.update.micro_batches", _all_but_the_last),
        run=cut,
        expect="rows were lost in micro-batching",
    ),
)
