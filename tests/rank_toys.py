"""Runs and updates that several ranks take together, for the tests of ranks and of weights divided among them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etude
from etude.core import stages
from etude.core.batches import TokenBatch
from etude.core.complete import complete_token
from etude.core.cut import cut
from etude.core.kinds import TokenMethod
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.learners.value_model import ValueModel
from etude.loops.lessons import Lesson, taught
from etude.loops.team import Team
from etude.loops.token_learning import TokenLearners
from etude.loops.update import Updater
from etude.policies.language import LanguagePolicy
from etude.regularizers.kl import KLToReference
from etude.runtime import divided
from etude.runtime.checkpoints import load_tensors
from etude.runtime.executors.roles import Dispatch, dispatched
from etude.runtime.ranks import Gloo, Ranks
from etude.runtime.shards import Shard
from language_toys import random_batch, random_policy

TIMINGS = ("seconds", "tokens_per_second")
SMALL: dict[str, Any] = {
    "steps": 3, "evaluate": 0, "quiet": True, "preset": False, "threads": 1, "dtype": "float64", "micro_tokens": 256,
    "checkpoint_every": 1,
}  # fmt: skip
GRPO = ("problems=3", "experience.size=4", "regularizers=kl-to-reference")
BUDGET = 60
"""Padded tokens of a micro-batch: each rank has several."""
MAKING = threading.Lock()
"""Models are made with torch's one generator."""


def trained(method: str, out: Path, changes: Sequence[str], **options: Any) -> etude.Result:
    task = "preferences" if method == "dpo" else "compose"
    return etude.train(method, task, out=str(out), set=list(changes), **{**SMALL, **options})


def saved(result: etude.Result) -> dict[str, Tensor]:
    """All tensors of the last checkpoint, whoever wrote them; those of a model by its file."""
    models = sorted((result.checkpoint / "model").rglob("*.safetensors"))
    own = {f"{file.stem}/{k}": v for file in models for k, v in load_tensors(file).items()}
    return own | load_tensors(result.checkpoint / "state.safetensors") | divided.read(result.checkpoint)


def assert_alike(one: etude.Result, other: etude.Result, atol: float = 1e-6) -> None:
    """Every tensor of the last checkpoints within 1e-6, every metric about the same."""
    mine, theirs = saved(one), saved(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=atol, msg=name)
    for own, told in zip(one.metrics, other.metrics, strict=True):
        assert own.keys() == told.keys()
        kept = [k for k in own if not k.startswith(TIMINGS)]
        assert [told[k] for k in kept] == pytest.approx([own[k] for k in kept], rel=1e-5, abs=1e-7)


def killed(team: Team) -> None:
    """End the process of a rank."""
    worker = team.executor.pool.workers[0]  # type: ignore[attr-defined]
    worker.process.kill()
    worker.process.wait()


# Updates of one batch


def cut_at(cuts: Sequence[float] | None, batch: TokenBatch, count: int, whole_groups: bool) -> list[Tensor]:
    """Rows of each rank: `cuts` says whose they are, as a share of the rows up to each rank's last."""
    if cuts is None:
        return cut(batch, count, whole_groups)
    units, whose = torch.unique(batch.group, return_inverse=True)
    if not whole_groups:
        units = whose = torch.arange(len(batch))
    ends = [0, *(round(share * len(units)) for share in cuts), len(units)]
    return [((whose >= a) & (whose < b)).nonzero()[:, 0] for a, b in pairwise(ends)]


def method_of(name: str) -> TokenMethod:
    own, _, what = name.partition(" with ")
    method: Any = get_method(own)
    if what == "kl":
        method = method.replace(regularizers=(KLToReference(coefficient=0.1),))
    if what == "a critic of its own":
        method = method.replace(critic=ValueModel())
    return method  # type: ignore[no-any-return]


def rows_of(policy: LanguagePolicy) -> TokenBatch:
    """Rows with all that an update may ask for; one of them has nothing to teach where only advantages do."""
    batch = random_batch((2, 2, 2, 2), seed=5)
    random = torch.Generator().manual_seed(3)

    def drawn() -> Tensor:
        return torch.randn(batch.tokens.shape, generator=random, dtype=torch.float64) * batch.action_mask

    with torch.no_grad():
        said = policy.evaluate(batch).logp
    advantages = drawn()
    advantages[2] = 0.0
    scores = torch.tensor([1.0, 0.0] * 4, dtype=torch.float64)
    return batch.replace(
        advantages=advantages, values=drawn(), returns=drawn(), reference_logp=said + 0.1 * drawn(),
        behaviour_logp=said, proximal_logp=said, entropy=drawn().abs(), rewards=drawn(), scores=scores,
        weights=torch.tensor([1.0, 2.0] * 4, dtype=torch.float64), episodes=[],
    )  # fmt: skip


def whole(parameter: Any, tensor: Tensor | None) -> Tensor | None:
    """What is as large as a parameter, of all ranks."""
    if tensor is None:
        return None
    return parameter.joined(tensor) if isinstance(parameter, Shard) else tensor.detach().clone()


def updated(name: str, ranks: Ranks) -> tuple[dict[str, float], list[Tensor | None], list[Tensor]]:
    """Metrics, gradients of the last step, and weights after all steps of two training steps."""
    return update_of(name, ranks)[:3]


def update_of(
    name: str, ranks: Ranks
) -> tuple[dict[str, float], list[Tensor | None], list[Tensor], Updater]:  # fmt: skip
    """The same, and what took the steps."""
    with MAKING:
        method = complete_token(stages.bound(method_of(name))[0][1])
        policy = random_policy("gpt2", dtype=torch.float64, seed=2)  # rotary angles are float32, whose ends round apart
        batch = rows_of(policy)
        if ranks.lockstep:
            policy.divide(ranks)
        learners = TokenLearners(method, policy, Stream(0).split("learners"), 4, ranks)
        updater = Updater(policy, method, 4, BUDGET, 9, learners, ranks)
    metrics = {}
    said = batch.behaviour_logp
    for step in range(2):
        if not ranks.lockstep:  # else nobody but the first has all weights
            with torch.no_grad():
                said = policy.evaluate(batch).logp
        else:
            said = ranks.told(policy.evaluate(batch).logp.tolist() if ranks.rank == 0 else None)[0]
            said = torch.tensor(said, dtype=torch.float64)
        fresh = batch.replace(behaviour_logp=said, proximal_logp=said)
        metrics = taught(updater, [[Lesson(method, fresh)]], step, Stream(1).split("step", step))
    trained = list(updater.stepper.parameters)
    trained += [] if learners.critic is None else learners.critic.stepper.parameters
    gradients, weights = [whole(p, p.grad) for p in trained], [whole(p, p) for p in trained]
    return metrics, gradients, [w for w in weights if w is not None], updater


class Cut(Gloo):
    """A rank in lockstep whose rows are cut as `cuts` says."""

    cuts: Sequence[float] | None = None

    def cut(self, batch: TokenBatch, whole_groups: bool) -> list[Tensor]:
        return cut_at(self.cuts, batch, self.count, whole_groups)


class Other:
    """The role of every rank but the first, in updates of one batch."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    @dispatched(Dispatch.BROADCAST)
    def join(self, meeting: str, count: int) -> dict[str, Any]:
        torch.set_num_threads(1)
        self.ranks = Cut(Path(meeting), self.rank, count, lockstep=True)
        return {}

    @dispatched(Dispatch.BROADCAST)
    def play(self, name: str, cuts: list[float] | None) -> dict[str, Any]:
        self.ranks.cuts = cuts
        updater = update_of(name, self.ranks)[3]
        return {"held": held(updater)}


def held(updater: Updater) -> list[int]:
    """Bytes of weights, of gradients and of moments that a rank has; its weights as FSDP2 holds them."""
    shards = updater.policy.weights.shards
    weights = updater.stepper.parameters if shards is None else [p.to_local() for p in shards.model.parameters()]  # type: ignore[operator]
    gradients = [p.grad for p in updater.stepper.parameters if p.grad is not None]
    moments = [v for state in updater.stepper.moments().values() for k, v in state.items() if k != "step"]
    return [sum(t.nbytes for t in tensors) for tensors in (weights, gradients, moments)]
