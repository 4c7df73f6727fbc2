"""The loop of every token method: curriculum, experience, rewards, filters, advantages, optimizer steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core import stages
from etude.core.batches import TokenBatch
from etude.core.complete import complete_token
from etude.core.episodes import Problem
from etude.core.errors import EtudeError
from etude.core.loop import StepReport
from etude.core.method import Method
from etude.core.part import Need
from etude.core.slots import Context, Reference
from etude.core.stages import OTHER, OWN
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.loops.ahead import Ahead
from etude.loops.credit import gathered
from etude.loops.differences import METRIC, Differences
from etude.loops.gather import Gatherer
from etude.loops.language_report import describe, record, second_looks
from etude.loops.learn import Trainer
from etude.loops.players import FIRST, Player, Players, restore, saved
from etude.loops.scorer import Scorer
from etude.loops.states import copied, join_tensors, split_tensors
from etude.loops.team import Team
from etude.loops.token_learning import TokenLearners, own_needs
from etude.loops.update import Updater
from etude.policies.language import LanguagePolicy
from etude.policies.sparing import checkpoint_bytes, mark, recalled, spared
from etude.runtime.checkpoints import load_json, load_tensors, save_json, save_tensors
from etude.runtime.ranks import ALONE

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod
    from etude.experience.samplers import Samplers

MICRO_TOKENS = 8192
REFERENCES = frozenset({Need.REFERENCE, Need.REFERENCE_LOGP, Need.REFERENCE_VALUES})
"""What a reference is kept for."""


class LanguageLoop:
    """Trains a token method on a language task.

    Args:
        method: what to do; bound here, so its parts' states are this run's.
        task: what to get good at.
        policy: the language model.
        seed: all randomness comes from it.
        steps: training steps in total (for schedules and stages).
        micro_tokens: padded tokens per micro-batch; changes memory and speed, not results.
        samplers: who plays the episodes of training; None: this process.
        bound: how many training steps rows may be older than the policy that learns from them; samplers gather for so
            many steps ahead.
        team: other ranks that take the updates too.
    """

    headline = "accuracy"

    def __init__(
        self, method: Method, task: LanguageTask, policy: LanguagePolicy, *, seed: int, steps: int,
        pool: Sequence[Problem] | None = None, micro_tokens: int = MICRO_TOKENS, samplers: Samplers | None = None,
        bound: int = 0, team: Team | None = None,
    ) -> None:  # fmt: skip
        self.team, self.ranks = team, ALONE if team is None else team.ranks
        self.task, self.policy, self.steps, self.seed, self.samplers = task, policy, steps, seed, samplers
        self.finished = 0
        own_parts = stages.bound(method)
        self.stages = [(until, complete_token(own)) for until, own in own_parts]
        self.others = [None if m is None else complete_token(m) for m in stages.others(method, own_parts)]
        self.stream = Stream(seed)
        if any(m.reads_value_head for m in self._methods()):
            policy.add_value_head()  # before the optimizer is built, even if only a later stage needs it
        pool = task.problems("train") if pool is None else pool
        self.dropped: Counter[str] = Counter()
        self.gatherer = Gatherer(task, policy, pool, self._limit(self.method), self.dropped)
        self.ahead = None if samplers is None or not bound else Ahead(samplers, self.gatherer, bound, self)
        self.scorer = Scorer(task, policy, self.dropped)
        learners = self._learners(self.method, policy)
        updater = Updater(policy, self.method, steps, micro_tokens, self._limit(self.method), learners, self.ranks)
        self.players: Players = {FIRST: Player(policy, updater)}
        self._begin_others(updater)
        self.differences = Differences()
        keeps_reference = any(REFERENCES & m.needs() for m in self._methods())
        if keeps_reference:
            policy.keep_reference()
        self.trainer = Trainer(self.players, keeps_reference, team)
        self.trainer.begin_reference(self.method)

    @property
    def stage(self) -> int:
        """The number of the current stage."""
        return stages.current(self.stages, self.finished, self.steps)

    @property
    def method(self) -> CompleteTokenMethod:
        """The method of the current stage."""
        return self.stages[self.stage][1]

    def _methods(self) -> list[CompleteTokenMethod]:
        return [*(m for _, m in self.stages), *(m for m in self.others if m is not None)]

    @property
    def updater(self) -> Updater:
        """What takes the steps of the policy that samples."""
        return self.players[FIRST].updater

    def _limit(self, method: CompleteTokenMethod) -> int:
        return method.experience.max_tokens or self.task.max_tokens

    # One step

    def step(self) -> StepReport:
        """Gather a batch, learn from it, tell the parts what happened."""
        own, stream = self.method, self.stream.split("step", self.finished)
        method = self._chosen(own, stream)
        begun = time.monotonic()
        self.policy.check_sampler()
        self.dropped.clear()
        self.policy.work.clear()
        if self.ahead is not None:
            self.ahead.reach(self.finished, self.steps)
        with self._untouched(method):
            assessed, batch = gathered(
                method,
                method.experience.asks(method.problems),
                lambda count, number: self._assess(method, count, number, stream),
            )
        gathering = time.monotonic() - begun
        metrics = describe(assessed, self.task, method.experience.samples, self.dropped)
        if method.second_look is not None:
            metrics |= second_looks(assessed, method.second_look.stages)
        if method.experience.samples:
            metrics[METRIC] = self.differences.watch(assessed, method.rewards)
            metrics |= {name: float(count) for name, count in self.policy.work.items()}
        if self.ahead is not None:
            self.updater.older, metrics["lag"] = self.ahead.older(self.finished)
        if len(batch):
            batch, learned = self.trainer.learn(method, batch, self.finished, stream)
            metrics |= learned
        metrics |= self._told(method, metrics)
        if self.ahead is not None:
            self.ahead.done(self.finished)
        self.finished += 1
        self.trainer.refresh_reference(method.reference.refresh(self.finished) if method.reference else 0.0)
        if self.method is not own:
            self._begin_stage(own, self.method)
        ended = time.monotonic()
        tokens = int(batch.attention_mask.sum())
        metrics["tokens_per_second"] = tokens / max(ended - begun, 1e-9)
        metrics["seconds/experience"], metrics["seconds/update"] = gathering, ended - begun - gathering
        return StepReport(metrics, [record(e, batch, i) for i, e in enumerate(batch.episodes)])

    def _chosen(self, own: CompleteTokenMethod, stream: Stream) -> CompleteTokenMethod:
        """The method that the step follows: the stage's own, or the other one where its chooser says so."""
        number, method, turn = self.stage, own, OWN
        if (other := self.others[number]) is not None:
            part, steps = own.stages[number], stages.span(self.stages, number, self.steps)
            assert part.chooser is not None
            if part.chooser.chooses_other(self.finished - steps.start, len(steps), stream.split("turn")):
                method, turn = other, OTHER if part.own_optimizer else OWN
        for player in self.players.values():
            player.updater.turn, player.updater.length = turn, self._limit(method)
        if self.team is not None:
            self.team.at(number, method is not own)
        return method

    def _told(self, method: CompleteTokenMethod, metrics: dict[str, float]) -> dict[str, float]:
        """Tell the choosers of all stages what a step came to; what the present one went by."""
        for part, other in zip(self.method.stages, self.others):
            if part.chooser is not None and other is not None:
                part.chooser.told(stages.alike(method, other), metrics)
        if (other := self.others[self.stage]) is None:
            return {}
        chooser = self.method.stages[self.stage].chooser
        assert chooser is not None
        return {"other": float(method is other), **chooser.metrics()}

    @contextmanager
    def _untouched(self, method: CompleteTokenMethod) -> Iterator[None]:
        """Where gathering fails, the parts go back to what they knew before, and the error says that it is so."""
        before = copied(method.state_dict())
        try:
            yield
        except EtudeError as error:
            method.load_state_dict(before)
            error.intact = True
            raise

    def _assess(self, method: CompleteTokenMethod, count: int, number: int, stream: Stream) -> TokenBatch:
        """Gather rows for `count` problems, and score them."""
        context = self.context(method, stream.split("round", number))
        if self.ahead is None:
            rows = self.gatherer.gather(method, count, context)
        elif number:
            rows = self.ahead.again(self.finished, method, count, context)
        else:
            rows = self.ahead.rows(self.finished, method)
        return self.scorer.score(method, rows, context, self.updater.budget, self.updater.learners)

    def plan(self, step: int) -> tuple[CompleteTokenMethod, Context]:
        """The method of a step, be it still to come, and what its parts may use to gather for it."""
        method = self.stages[stages.current(self.stages, step, self.steps)][1]
        return method, self.context(method, self.stream.split("step", step).split("round", 0), step)

    def context(self, method: CompleteTokenMethod, stream: Stream, step: int | None = None) -> Context:
        """What the parts may use during a step, this one where nothing else is said."""
        record = method.needs("token_weights", "rewards", "filters", "advantages") | own_needs(method)
        if self.policy.shadow or self.policy.autocast:
            record -= {"hidden"}  # of another precision than the trained weights'
        limit = self._limit(method)
        number = self.finished if step is None else step
        return Context(self.task, self.policy, stream, number, self.steps, limit, record, self.samplers)

    def _learners(self, method: CompleteTokenMethod, policy: LanguagePolicy) -> TokenLearners:
        """The networks beside a policy, as they begin."""
        return TokenLearners(method, policy, self.stream.split("learners"), self.steps, self.ranks)

    def _begin_stage(self, before: CompleteTokenMethod, method: CompleteTokenMethod) -> None:
        """Let start anew what the stage says; all else goes on."""
        anew = stages.resets(method, self.stage)
        others = method.slots()["learners"] != before.slots()["learners"]
        for player in self.players.values():
            if method.critic != before.critic:
                player.updater.learners.begin_critic(method, player.policy)
            if "optimizer" in anew and others:
                player.updater.learners = self._learners(method, player.policy)
        self.begin_anew(anew)
        for player in self.players.values():
            self._begin_others(player.updater)

    def begin_anew(self, slots: Collection[str]) -> None:
        """Let the optimizer start with nothing remembered, the reference with the policy as it is, as `slots` says."""
        for player in self.players.values():
            if "optimizer" in slots:
                player.updater.restart(self.method)
        if "reference" in slots:
            self.trainer.refresh_reference(1.0)
            self.trainer.begin_reference(self.method)

    def _begin_others(self, updater: Updater) -> None:
        """A fresh optimizer for the steps of the stage's other method, if they have one of their own."""
        updater.turn = OWN
        updater.steppers.pop(OTHER, None)
        other = self.others[self.stage]
        if other is not None and self.method.stages[self.stage].own_optimizer:
            updater.restart(other, OTHER)

    # Checkpoints

    @property
    def checkpoint_bytes(self) -> int:
        """What a checkpoint will take on the disk, about."""
        references = [m.reference for _, m in self.stages if m.reference is not None]
        moves = len(self.stages) > 1 or any(type(r).refresh is not Reference.refresh for r in references)
        twice = any(stage.own_optimizer for stage in self.method.stages)
        return checkpoint_bytes(self.policy, moves, twice) + (0 if self.ahead is None else self.ahead.bytes)

    def save(self, folder: Path) -> None:
        """Weights (in Hugging Face's format under `model/`), optimizers, learners, parts' states, counters."""
        self.policy.save(folder / "model")
        learned, found = split_tensors([m.state_dict() for m in self._methods()])
        tensors, counters = saved(self.players)
        left, begun = spared(self.policy), dict[str, Any]()
        if self.ahead is not None:
            begun["ahead"], more = self.ahead.save(folder)
            found |= more
        save_tensors(folder / "state.safetensors", {k: v for k, v in {**tensors, **found}.items() if k not in left})
        counters |= {"finished": self.finished, "reference": mark(self.policy), **self.differences.state_dict()}
        save_json(folder / "state.json", {"counters": counters, "parts": learned, **begun})

    def load(self, folder: Path) -> None:
        """Go back to exactly where `save` was called."""
        tensors, data = load_tensors(folder / "state.safetensors"), load_json(folder / "state.json")
        counters = data["counters"]
        self.finished = counters["finished"]
        for player in self.players.values():
            player.updater.learners = self._learners(self.method, player.policy)
            player.updater.restart(self.method)
            self._begin_others(player.updater)
        whole = recalled(self.policy, tensors, folder / "model", counters.get("reference"))
        restore(self.players, whole, counters)
        if self.ahead is not None and "ahead" in data:
            self.ahead.load(folder, data["ahead"], tensors)
        self.restore(join_tensors(data["parts"], tensors))
        self.differences.load_state_dict(counters)

    def states(self) -> Any:
        """What all parts have learned and counted, anew."""
        return copied([m.state_dict() for m in self._methods()])

    def restore(self, states: Any) -> None:
        """Let all parts know that again."""
        for method, learned in zip(self._methods(), states, strict=True):
            method.load_state_dict(learned)
