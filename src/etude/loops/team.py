"""Ranks of an update: the first one gathers, scores and leads, the others take every step with it.

A follower has the policy, its optimizer and the networks that its step or the critic's needs, nothing else. For a step
it is given the rows with their credit and what the parts of the update have counted, and does what the first rank does,
each on its own part of the rows (`together.py`). Weights are sent once: from then on all ranks make the same ones.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from etude.core import stages
from etude.core.batches import Head, TokenBatch
from etude.core.complete import complete_token
from etude.core.errors import ConfigError, EtudeError
from etude.core.method import Method
from etude.core.stages import OTHER
from etude.core.streams import Stream
from etude.loops.lessons import Lesson, taught
from etude.loops.models import Trained
from etude.loops.shards import held, joined, write
from etude.loops.states import below, join_tensors, split_tensors
from etude.loops.token_learning import TokenLearners
from etude.loops.update import Updater
from etude.policies.language import LanguagePolicy
from etude.policies.snapshots import Snapshot
from etude.policies.sparing import spared
from etude.runtime import divided
from etude.runtime.checkpoints import load_tensors
from etude.runtime.executors.roles import Answer, Dispatch, Executor, dispatched
from etude.runtime.ranks import ALONE, Gloo, LostRank, Ranks

if TYPE_CHECKING:
    from etude.core.episodes import Episode

READ = ("objective", "aggregation", "token_weights", "regularizers", "critic", "learners", "optimizer")
"""Slots whose parts an update asks."""


class NotHere:
    """Stands for the episode of a row: a rank that follows has the tensors alone, and says so to whoever asks for more.

    Raises: ConfigError for every attribute.
    """

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(
            f"A part of the update reads the {name} of episodes, and with --ranks the ranks have the tensors of their "
            "rows alone: leave --ranks out for this method."
        )


class Follower:
    """The role of every rank but the first.

    Args:
        policy: of the run's model; its weights are those that `take` brings.
        steps, budget: of the run, and padded tokens of a micro-batch.
    """

    def __init__(
        self, method: Method, policy: LanguagePolicy, *, rank: int, seed: int, steps: int, budget: int
    ) -> None:  # fmt: skip
        own = stages.bound(method)
        self.stages = [complete_token(m) for _, m in own]
        self.others = [None if m is None else complete_token(m) for m in stages.others(method, own)]
        self.policy, self.rank, self.steps, self.budget = policy, rank, steps, budget
        self.stream, self.ranks = Stream(seed), ALONE
        self.stage = 0
        self.model: Trained | None = None

    def _updater(self, stage: int) -> Updater:
        method, other = self.stages[stage], self.others[stage]
        learners = TokenLearners(method, self.policy, self.stream.split("learners"), self.steps, self.ranks)
        updater = Updater(self.policy, method, self.steps, self.budget, 1, learners, self.ranks)
        if other is not None and method.stages[stage].own_optimizer:
            updater.restart(other, OTHER)
        return updater

    @dispatched(Dispatch.BROADCAST)
    def ready(self) -> dict[str, Any]:
        """Nothing: it is there."""
        return {}

    @dispatched(Dispatch.BROADCAST)
    def join(self, meeting: str, count: int, shard: bool = False) -> dict[str, Any]:
        """Meet the other ranks, and divide the weights among all, where they are to be."""
        self.ranks = Gloo(Path(meeting), self.rank, count, lockstep=shard)
        if shard:
            self.policy.divide(self.ranks)
        return {}

    @dispatched(Dispatch.BROADCAST)
    def take(self, file: str, stage: int, counters: Mapping[str, Any]) -> dict[str, Any]:
        """Have all that the next step depends on, as the first rank has it in this stage."""
        tensors = load_tensors(Path(file))
        if any(k.startswith("value_head.") for k in tensors):
            self.policy.add_value_head()  # before the optimizer is built
        self.stage, self.model = stage, Trained(self.policy, self._updater(stage))
        self.model.load(tensors, counters)
        return {}

    @dispatched(Dispatch.BROADCAST)
    def give(self, names: list[str]) -> dict[str, Any]:
        """Let all ranks have whole what is divided among them, of these names."""
        assert self.model is not None
        joined(self.model, names)
        return {}

    @dispatched(Dispatch.BROADCAST)
    def write(self, folder: str, names: list[str]) -> dict[str, Any]:
        """Write this rank's rows of these tensors into a checkpoint."""
        assert self.model is not None
        write(self.model, Path(folder), names, self.ranks)
        return {}

    @dispatched(Dispatch.BROADCAST)
    def learn(self, file: str, step: int, length: int, other: bool, turn: str, told: Any) -> dict[str, Any]:
        """Take the steps of a training step on the rows of a file."""
        method = self.others[self.stage] if other else self.stages[self.stage]
        assert method is not None and self.model is not None
        updater = self.model.updater
        batch, states = _received(load_tensors(Path(file)), told)
        method.load_state_dict(states)
        updater.turn, updater.length = turn, length
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the first rank says the same
                taught(updater, [[Lesson(method, batch)]], step, self.stream.split("step", step))
        except BaseException as error:
            self.ranks.close()  # nobody is to wait for this rank
            if self.ranks.lockstep:
                _end(error)
            raise
        return {}


class Team:
    """The other ranks, as the first one leads them.

    Args:
        executor: of the role `Follower`.
        ranks: this process among them, which has joined.
    """

    def __init__(self, executor: Executor, ranks: Ranks) -> None:
        self.executor, self.ranks = executor, ranks
        self.stage, self.other = 0, False
        self._given: list[object] = []

    def at(self, stage: int, other: bool) -> None:
        """The next steps are those of this stage, or of its other method."""
        self.stage, self.other = stage, other

    def lead(
        self, model: Trained, lesson: Lesson, step: int, learn: Callable[[], dict[str, float]]
    ) -> dict[str, float]:  # fmt: skip
        """What `learn` comes to here while the others do the same.

        Raises: LostRank, or what another rank raised; the weights may then be those of a part of the step.
        """
        try:
            self._bring(model)
            updater, (tensors, told) = model.updater, _sent(lesson.batch, lesson.method)
            rows = Snapshot(tensors, model.policy.version)
            try:
                answer = self.executor.begin(
                    "learn", None, file=str(rows.file), step=step, length=updater.length, other=self.other,
                    turn=updater.turn, told=told,
                )  # fmt: skip
                found = self._with_others(answer, learn)
            finally:
                rows.close()
        except EtudeError as error:
            error.intact = False
            raise
        return found

    def _with_others(self, answer: Answer, learn: Callable[[], dict[str, float]]) -> dict[str, float]:
        try:
            found = learn()
        except LostRank:
            answer.result()  # raises what became of it, which says more
            raise
        answer.result()
        return found

    def _now(self, model: Trained) -> list[object]:
        """What the others have, if it is the same as when they were given something last."""
        updater = model.updater
        return [self.stage, model.policy.loads, updater.learners, updater.learners.critic, *updater.steppers.values()]

    def _bring(self, model: Trained) -> None:
        """Give all ranks what this one has, if something else than their common steps has changed it since."""
        now = self._now(model)
        if len(now) != len(self._given) or not all(a is b for a, b in zip(now, self._given)):
            self._hand(model, self._whole(model))

    def hand(self, model: Trained, loaded: Mapping[str, Tensor], stage: int) -> None:
        """Give all ranks their shards of what this one has loaded, where something is divided; others wait for `lead`.

        Args:
            loaded: by the names of `model.tensors`, whole; weights that this rank has whole may be left out.
        """
        self.stage = stage
        if shards := model.shards():
            own = {k: v for k, v in loaded.items() if k in shards}
            self._hand(model, {**model.tensors(), **held(model), **own})

    def _hand(self, model: Trained, tensors: Mapping[str, Tensor]) -> None:
        own = {k: v.clone() for k, v in tensors.items() if not k.startswith("reference.")}
        file = Snapshot(own, model.policy.version)
        try:
            self.executor.ask("take", None, file=str(file.file), stage=self.stage, counters=model.counters())
        finally:
            file.close()
        self._given = self._now(model)

    def _whole(self, model: Trained) -> dict[str, Tensor]:
        """All tensors of a model; what is divided is asked of the others, if they have it as this one has."""
        names = [*model.shards()]
        if not names:
            return model.tensors()
        if not self._given or self._given[1] != model.policy.loads:
            return {**model.tensors(), **held(model)}
        answer = self.executor.begin("give", None, names=names)
        found = joined(model, names)
        answer.result()
        return {**model.tensors(), **found}

    def save(self, folder: Path, model: Trained) -> None:
        """Write what is divided among the ranks into a checkpoint: each its own rows, in a file of its own."""
        shards, left = model.shards(), spared(model.policy)
        if not (names := [name for name in shards if name not in left]):
            return
        self._bring(model)
        divided.write_index(folder, self.ranks.count, {name: shards[name].whole[0] for name in names})
        answer = self.executor.begin("write", None, folder=str(folder), names=names)
        write(model, folder, names, self.ranks)
        answer.result()

    def close(self) -> None:
        """End the other ranks."""
        self.executor.close()
        self.ranks.close()


def _end(error: BaseException) -> None:
    """End this process, saying why: FSDP2 keeps the connections, and others wait in a pass until they are closed."""
    if isinstance(error, EtudeError):
        print(error, file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error, file=sys.stderr)
    os._exit(1)


def _sent(batch: TokenBatch, method: Method) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Rows, and the states of the parts of an update, as tensors and JSON values."""
    own = {path: state for path, state in method.state_dict().items() if path.partition(".")[0] in READ}
    parts, tensors = split_tensors(own)
    tensors |= {f"rows.{k}": v for k, v in batch._tensors().items()}
    tensors |= {f"offers.{k}": v for k, v in batch.offers.items()}
    told: dict[str, Any] = {"parts": parts, "temperature": batch.temperature}
    if batch.head is not None:
        head = {"weight": batch.head.weight, "bias": batch.head.bias}
        tensors |= {f"head.{k}": v for k, v in head.items() if v is not None}
        told["head"] = [batch.head.temperature, batch.head.softcap]
    return {k: v.detach().clone() for k, v in tensors.items()}, told


def _received(tensors: Mapping[str, Tensor], told: Mapping[str, Any]) -> tuple[TokenBatch, Any]:
    """Undo `_sent`."""
    rows: dict[str, Any] = below(tensors, "rows.")
    head, layer = None, below(tensors, "head.")
    if "head" in told:
        head = Head(layer["weight"], layer.get("bias"), *told["head"])
    batch = TokenBatch(**rows, offers=below(tensors, "offers."), head=head, temperature=told["temperature"])
    batch.episodes = [cast("Episode", NotHere()) for _ in range(len(batch))]
    return batch, join_tensors(told["parts"], dict(tensors))
