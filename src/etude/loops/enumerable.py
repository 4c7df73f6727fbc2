"""The loop over enumerable policies: the same parts as for language models, many seeds at once, every result exact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.complete import complete_token
from etude.core.draws import bits, uniforms
from etude.core.episodes import FIRST, occurrences
from etude.core.loop import StepReport
from etude.core.method import Method
from etude.core.rows import split_groups, split_rows
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.loops.bandit import Bandit
from etude.loops.credit import Rows, credited, loss, row_losses, scored, terms, total
from etude.loops.rounds import gathered
from etude.loops.states import join_tensors, split_tensors
from etude.optimizers.model import Halves, ModelStepper
from etude.optimizers.population import Metrics
from etude.policies.enumerated import covariance, value_error
from etude.policies.enumerated import exact as exact  # where experiments find it
from etude.runtime.checkpoints import load_json, load_tensors, save_json, save_tensors
from etude.tasks.tabular.enumerable import Enumerable

RATE = 0.05
"""The learning rate of tables where none is chosen."""


class Now(NamedTuple):
    """All members as they are when a step begins: log-probabilities, chances of responses summed up, the reference."""

    table: Tensor
    below: Tensor
    held: Tensor | None


class Piece(NamedTuple):
    """A minibatch: which rows of the batch, and these rows."""

    rows: Tensor | slice
    batch: TokenBatch


class Lesson(NamedTuple):
    """One minibatch of a member as what takes its steps sees it; the gradient is there already, all members' at once.

    Where it is 0 everywhere, no step is taken.
    """

    batch: TokenBatch
    tables: Sequence[nn.Parameter]
    found: Sequence[Tensor]
    of_halves: Halves | None

    def gradient(self) -> Metrics:
        if any(bool(found.any()) for found in self.found):
            for table, found in zip(self.tables, self.found, strict=True):
                table.grad = found
        return {}

    def halves(self) -> Halves | None:
        return self.of_halves


class EnumerableLoop:
    """Trains a token method on an enumerable task, one member per seed.

    Parts see one member at a time, so their statistics never mix; sampling, log-probabilities, gradients and optimizer
    steps are computed for all members together. A step visits as many prompts as the method takes problems, every
    prompt if there are no more. Where the method has a critic, every member has a table of values beside its own.

    Args:
        method: what to do; bound here once per member.
        seeds: one member each; all start from the task's first policy.
        steps: training steps in total.
    """

    headline = "reward"

    def __init__(self, method: Method, task: Enumerable, *, seeds: Sequence[int], steps: int) -> None:
        self.task, self.steps, self.finished, self.seeds = task, steps, 0, list(seeds)
        whole = complete_token(method)
        assert isinstance(whole.experience, Groups)
        self.size, self.methods = whole.experience.size, [whole.bind() for _ in seeds]
        self.policy = task.policy(len(self.seeds))
        self.rewards = task.table(len(self.policy.tokens))
        self.bandit = Bandit(self.policy, self.rewards, task.problems("train"))
        self.places = {problem.id: x for x, problem in enumerate(self.bandit.problems)}
        if whole.optimizer.lr is None:
            self.methods = [m.replace(optimizer=m.optimizer.replace(lr=RATE).bind()) for m in self.methods]
        if whole.joint_critic is not None:
            self.policy.begin_values()
        self.steppers = [ModelStepper(m.optimizer, self._trained(k)) for k, m in enumerate(self.methods)]
        self.reference = [table.detach().clone() for table in self.policy.logits]
        self.needs_reference = "reference_logp" in method.needs()
        self.sampled_needs = frozenset({"values"} if self.policy.values else ())

    def _trained(self, member: int) -> list[nn.Parameter]:
        """The tables that a member's optimizer steps."""
        return [self.policy.logits[member], *self.policy.values[member : member + 1]]

    def step(self) -> StepReport:
        """Groups for every member, and what is learned from them."""
        batches = self._collect()
        live = [k for k, batch in enumerate(batches) if len(batch)]
        for seed, stepper in zip(self.seeds, self.steppers):
            stepper.begin(self.finished, f"{self.finished} of seed {seed}")
        for epoch in range(self.methods[0].epochs):
            pieces = {k: self._minibatches(k, batches[k], epoch) for k in live}
            for number in range(max((len(p) for p in pieces.values()), default=0)):
                self._update({k: p[number] for k, p in pieces.items() if number < len(p)}, batches)
        for k in live:
            for part in self.methods[k].parts().values():
                part.after_update(batches[k])
        self.finished += 1
        self._refresh_reference()
        return self._report()

    # Gather and score

    @torch.no_grad()
    def _collect(self) -> list[TokenBatch]:
        """Each member's scored and credited rows."""
        held = torch.stack(self.reference).log_softmax(-1) if self.needs_reference else None
        now = Now(self.policy.table(), self.policy.probs().cumsum(-1), held)
        return [self._gather(k, now) for k in range(len(self.seeds))]

    def _gather(self, member: int, now: Now) -> TokenBatch:
        method, stream = self.methods[member], Stream(self.seeds[member]).split("step", self.finished)

        def assess(count: int, number: int) -> Rows:
            at = stream.split("round", number) if number else stream  # the first round has the step's own address
            context = Context(self.task, self.policy, at, self.finished, self.steps, self.policy.length)
            rows = self.bandit.shown(method, self._sample(member, count, at, now), member)
            return {FIRST: scored(method, rows, context)}

        batch = gathered({FIRST: method}, min(method.problems, self.policy.prompts), assess).rows[FIRST]
        if "row_loss" in method.needs():
            batch = batch.replace(row_loss=torch.zeros_like(batch.scores))
        return credited(method, batch)

    def _sample(self, member: int, count: int, stream: Stream, now: Now) -> TokenBatch:
        """A group for each of `count` problems that the curriculum chose; rows stand in the pool's order."""
        problems = self.methods[member].curriculum.choose(self.bandit.problems, count, stream.split("problems"))
        prompts = [self.places[p.id] for p in problems]
        keys = [
            stream.draw("problem", p.id, *([again] if again else [])).key
            for p, again in zip(problems, occurrences(problems))
        ]
        group = torch.tensor(sorted(range(len(problems)), key=prompts.__getitem__))
        prompt, draw = torch.tensor(prompts)[group], bits(torch.tensor(keys)[group], 0, self.size).T.contiguous()
        uniform = uniforms(draw.flatten(), 0, 1).view(draw.shape)
        response = self.policy.respond(now.below[member, prompt], uniform).flatten()
        prompt, group = prompt.repeat_interleave(self.size), group.repeat_interleave(self.size)
        behaviour = self.policy.rows(member, prompt, response, now.table, self.sampled_needs)
        held = None if now.held is None else self.policy.rows(member, prompt, response, now.held).logp
        rows = self.bandit.batch(prompt, response, behaviour, held, group)
        return rows.replace(draw=draw.flatten(), values=behaviour.values)

    # Learn

    def _minibatches(self, member: int, batch: TokenBatch, epoch: int) -> list[Piece]:
        count = self.methods[member].minibatches
        if count == 1:
            return [Piece(slice(None), batch)]
        stream = Stream(self.seeds[member]).split("step", self.finished).split("minibatches", epoch)
        return [Piece(rows, batch.rows(rows)) for rows in split_groups(batch, count, stream.numpy)]

    def _update(self, pieces: dict[int, Piece], batches: Sequence[TokenBatch]) -> None:
        """One optimizer step of every member that has something to learn from."""
        table = self.policy.table()
        losses, halves = [], {}
        for k, (rows, batch) in pieces.items():
            method = self.methods[k]
            policy = self._evaluate(k, batch, table, "objective", "regularizers", "critic", "token_weights")
            policy.learning_rate = self.steppers[k].lr * method.optimizer.rate(self.finished, self.steps)
            summands = terms(method, batch, policy, self.policy.length)
            losses.append(total(summands))
            if (whole := batches[k].row_loss) is not None:
                whole[rows] = row_losses(summands, batch)
            if method.optimizer.halves:
                halves[k] = self._halves(k, batch)
        tables = [table for k in pieces for table in self._trained(k)]
        found = iter(torch.autograd.grad(torch.stack(losses).sum(), tables, materialize_grads=True))
        for k, (_, batch) in pieces.items():
            rate, own = self.methods[k].optimizer.rate(self.finished, self.steps), self._trained(k)
            self.steppers[k].step(Lesson(batch, own, [next(found) for _ in own], halves.get(k)), rate)

    def _evaluate(self, member: int, batch: TokenBatch, table: Tensor, *slots: str) -> TokenLogProbs:
        """What a member says about its rows now, and all that parts in these slots need."""
        assert batch.prompt is not None and batch.response is not None
        needs = self.methods[member].needs(*slots) if slots else frozenset[str]()
        return self.policy.rows(member, batch.prompt, batch.response, table, needs)

    def _halves(self, member: int, batch: TokenBatch) -> Halves | None:
        """The member's gradient from each half of every group; None if there is only one.

        Halves of whole groups would be about other prompts, whose logits are other parameters: no two gradients could
        agree. An objective that compares the rows of a group has whole ones nevertheless.
        """
        apart = self.methods[member].objective.couples == "group"
        gradients, pieces = [], split_groups(batch, 2, None) if apart else split_rows(batch)
        if len(pieces) < 2:
            return None
        for rows in pieces:
            part = batch.rows(rows)
            policy = self._evaluate(member, part, self.policy.table())
            half = loss(self.methods[member], part, policy, self.policy.length)
            gradients.append(torch.autograd.grad(half, self._trained(member), materialize_grads=True))
        return gradients[0], gradients[1], len(pieces[0]) / len(batch)

    @torch.no_grad()
    def _refresh_reference(self) -> None:
        for k, method in enumerate(self.methods):
            fraction = 0.0 if method.reference is None else method.reference.refresh(self.finished)
            if fraction:
                self.reference[k].lerp_(self.policy.logits[k].detach(), fraction)

    def exact(self) -> dict[str, Tensor]:
        """What is true of each member's policy, see `exact`."""
        return exact(self.policy, self.rewards)

    def _report(self) -> StepReport:
        measures = self.exact() | {"covariance": covariance(self.policy, self.rewards)}
        if self.policy.values:
            measures["value_error"] = value_error(self.policy, self.rewards)
        members = {k: v.tolist() for k, v in measures.items()}
        return StepReport({k: sum(v) / len(v) for k, v in members.items()}, [], members)

    # Checkpoints

    def save(self, folder: Path) -> None:
        """Tables, references, optimizers, parts' states."""
        tensors = {f"logits.{k}": t.detach() for k, t in enumerate(self.policy.logits)}
        tensors |= {f"reference.{k}": t for k, t in enumerate(self.reference)}
        tensors |= {f"values.{k}": t.detach() for k, t in enumerate(self.policy.values)}
        state = {
            "parts": [m.state_dict() for m in self.methods],
            "optimizers": [{str(i): s for i, s in stepper.moments().items()} for stepper in self.steppers],
            "finished": self.finished,
            "bad_steps": [stepper.failures for stepper in self.steppers],
        }
        plain, more = split_tensors(state)
        save_tensors(folder / "state.safetensors", {**tensors, **more})
        save_json(folder / "state.json", plain)

    def load(self, folder: Path) -> None:
        """Go back to exactly where `save` was called."""
        tensors = load_tensors(folder / "state.safetensors")
        state = join_tensors(load_json(folder / "state.json"), tensors)
        for k, (table, reference) in enumerate(zip(self.policy.logits, self.reference)):
            table.data.copy_(tensors[f"logits.{k}"])
            reference.copy_(tensors[f"reference.{k}"])
        for k, values in enumerate(self.policy.values):
            values.data.copy_(tensors[f"values.{k}"])
        kept = zip(self.steppers, state["optimizers"], state["bad_steps"], strict=True)
        for stepper, moments, failures in kept:
            stepper.failures = failures
            stepper.remember({int(i): s for i, s in moments.items()})
        for method, learned in zip(self.methods, state["parts"], strict=True):
            method.load_state_dict(learned)
        self.finished = state["finished"]
