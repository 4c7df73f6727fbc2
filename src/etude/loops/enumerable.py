"""The loop over enumerable policies: the same parts as for language models, many seeds at once, every result exact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.draws import bits, uniforms
from etude.core.loop import StepReport
from etude.core.method import Method
from etude.core.rows import split_groups
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.loops.bed import Bed
from etude.loops.states import join_tensors, split_tensors
from etude.policies.tabular import SoftmaxTree
from etude.runtime.checkpoints import load_json, load_tensors, save_json, save_tensors

RATE = 0.05
"""The learning rate of tables where none is chosen."""
KS = (1, 4, 16)


class EnumerableLoop:
    """Trains a token method on an enumerable task, one member per seed.

    Parts see one member at a time, so their statistics never mix; sampling, log-probabilities, gradients and optimizer
    steps are computed for all members together. Every prompt is visited in every step.

    Args:
        method: what to do; bound here once per member.
        seeds: one member each; all start from the task's first policy.
        steps: training steps in total.
    """

    headline = "reward"

    def __init__(self, method: Method, task: Any, *, seeds: Sequence[int], steps: int) -> None:
        assert isinstance(method.experience, Groups) and method.optimizer is not None
        self.task, self.steps, self.finished, self.seeds = task, steps, 0, list(seeds)
        self.methods = [method.bind() for _ in seeds]
        self.policy = task.policy(len(self.seeds))
        self.rewards = task.table(len(self.policy.tokens))
        self.bed = Bed(self.policy, self.rewards, task.problems("train"))
        if method.optimizer.lr is None:
            self.methods = [m.replace(optimizer=m.optimizer.replace(lr=RATE).bind()) for m in self.methods]
        builds: Any = self.methods[0].optimizer
        self.optimizers = [builds.build([table]) for table in self.policy.logits]
        self.rates = [float(o.param_groups[0]["lr"]) for o in self.optimizers]
        self.reference = [table.detach().clone() for table in self.policy.logits]
        self.needs_reference = "reference_logp" in method.needs()

    def step(self) -> StepReport:
        """One group per prompt for every member, and what is learned from it."""
        batches = self._collect()
        live = [k for k, batch in enumerate(batches) if len(batch)]
        first = self.methods[0]
        for epoch in range(first.epochs):
            pieces = {k: self._minibatches(k, batches[k], epoch) for k in live}
            for number in range(max((len(p) for p in pieces.values()), default=0)):
                self._update({k: p[number] for k, p in pieces.items() if number < len(p)})
        for k in live:
            for piece in pieces[k] if "row_loss" in first.needs() else ():
                batches[k].extras["row_loss"][piece.extras["place"]] = piece.extras["row_loss"]
            for part in self.methods[k].parts().values():
                part.after_update(batches[k])
        self.finished += 1
        self._refresh_reference()
        return self._report()

    def _collect(self) -> list[TokenBatch]:
        size = self.methods[0].experience.size  # type: ignore[union-attr]
        streams = [Stream(seed).split("step", self.finished) for seed in self.seeds]
        draws = self._draws(streams, size)
        responses = self.policy.sample(uniforms(draws.flatten(), 0, 1).view(draws.shape))
        prompt = torch.arange(self.policy.prompts).repeat_interleave(size)
        with torch.no_grad():
            table = self.policy.table()
            held = None if not self.needs_reference else torch.stack(self.reference).log_softmax(-1)
            found = []
            for k, method in enumerate(self.methods):
                response = responses[k].flatten()
                said = self.policy.rows(k, prompt, response, table)
                held_logp = None if held is None else self.policy.rows(k, prompt, response, held).logp
                context = Context(self.task, self.policy, streams[k], self.finished, self.steps, self.policy.length)
                batch = self.bed.batch(prompt, response, said, held_logp)
                batch.extras["response"], batch.draw = response, draws[k].flatten()
                found.append(self.bed.credit(method, batch, k, context))
        return found

    def _draws(self, streams: Sequence[Stream], size: int) -> Tensor:
        """[P, X, n] keys of the random numbers of each member's samples: the outputs of the draw of their prompt."""
        keys = [s.draw("problem", problem.id).key for s in streams for problem in self.bed.problems]
        return bits(torch.tensor(keys), 0, size).T.reshape(len(streams), self.policy.prompts, size)

    def _minibatches(self, member: int, batch: TokenBatch, epoch: int) -> list[TokenBatch]:
        count = self.methods[member].minibatches
        if "row_loss" in self.methods[member].needs():
            batch.extras |= {"place": torch.arange(len(batch)), "row_loss": torch.zeros_like(batch.scores)}
        if count == 1:
            return [batch]
        stream = Stream(self.seeds[member]).split("step", self.finished).split("minibatches", epoch)
        return [batch.rows(rows) for rows in split_groups(batch, count, stream.numpy)]

    def _update(self, batches: dict[int, TokenBatch]) -> None:
        """One optimizer step of every member that has something to learn from."""
        for table in self.policy.logits:
            table.grad = None
        table = self.policy.table()
        losses, halves = [], {}
        for k, batch in batches.items():
            method = self.methods[k]
            needs = method.needs("objective", "regularizers", "critic", "token_weights")
            said = self.policy.rows(k, batch.group, batch.extras["response"], table, needs)
            said.learning_rate = self.rates[k] * method.optimizer.rate(self.finished, self.steps)  # type: ignore[union-attr]
            losses.append(self.bed.loss(method, batch, said))
            if method.optimizer.halves:  # type: ignore[union-attr]
                halves[k] = self._halves(k, batch)
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        for k in batches:
            self._apply(k, halves.get(k))

    def _halves(self, member: int, batch: TokenBatch) -> tuple[list[list[Tensor]], float]:
        """The member's gradient from each half of the minibatch's groups, and the first half's share of the rows."""
        found, pieces = [], split_groups(batch, 2, None)
        for rows in pieces:
            part = batch.rows(rows)
            said = self.policy.rows(member, part.group, part.extras["response"], self.policy.table())
            loss = self.bed.loss(self.methods[member], part, said)
            found.append(list(torch.autograd.grad(loss, [self.policy.logits[member]])))
        return found, len(pieces[0]) / len(batch)

    def _apply(self, member: int, halves: tuple[list[list[Tensor]], float] | None) -> None:
        table, part, optimizer = self.policy.logits[member], self.methods[member].optimizer, self.optimizers[member]
        assert part is not None
        if table.grad is None or not bool(table.grad.any()):
            return
        pace = part.pace(*halves[0], halves[1]) if halves and len(halves[0]) == 2 else 1.0
        if (limit := part.clip()) is not None:
            torch.nn.utils.clip_grad_norm_([table], limit)
        if part.restarts(self.finished):
            optimizer.state.clear()
        optimizer.param_groups[0]["lr"] = self.rates[member] * part.rate(self.finished, self.steps) * pace
        optimizer.step()

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
        members = {k: v.tolist() for k, v in self.exact().items()}
        return StepReport({k: sum(v) / len(v) for k, v in members.items()}, [], members)

    # Checkpoints

    def save(self, folder: Path) -> None:
        """Tables, references, optimizers, parts' states."""
        tensors = {f"logits.{k}": t.detach() for k, t in enumerate(self.policy.logits)}
        tensors |= {f"reference.{k}": t for k, t in enumerate(self.reference)}
        state = {
            "parts": [m.state_dict() for m in self.methods],
            "optimizers": [{str(i): s for i, s in o.state_dict()["state"].items()} for o in self.optimizers],
            "finished": self.finished,
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
        for optimizer, moments in zip(self.optimizers, state["optimizers"], strict=True):
            whole = optimizer.state_dict()
            whole["state"] = {int(i): s for i, s in moments.items()}
            optimizer.load_state_dict(whole)
        for method, learned in zip(self.methods, state["parts"], strict=True):
            method.load_state_dict(learned)
        self.finished = state["finished"]


@torch.no_grad()
def exact(policy: SoftmaxTree, rewards: Tensor) -> dict[str, Tensor]:
    """What is true of each member's policy [P]: expected reward, pass@k and entropy, means over the prompts."""
    probs = policy.probs()
    solved = (probs * (rewards >= 1)).sum(-1).clamp(0, 1)
    found = {"reward": (probs * rewards).sum(-1).mean(1), "entropy": policy.entropy().mean(1)}
    return found | {f"pass@{k}": (1 - (1 - solved) ** k).mean(1) for k in KS}
