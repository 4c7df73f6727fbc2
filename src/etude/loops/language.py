"""The loop of every token method: curriculum, experience, rewards, filters, advantages, optimizer steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core import stages
from etude.core.complete import complete_token
from etude.core.episodes import FIRST, Problem
from etude.core.loop import StepReport
from etude.core.method import Method
from etude.core.part import Need
from etude.core.slots import Context
from etude.core.stages import OTHER, OWN
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experience.samplers import Samplers, beside
from etude.loops.ahead import Ahead
from etude.loops.credit import Rows
from etude.loops.differences import METRIC, Differences
from etude.loops.gather import Gatherer
from etude.loops.language_report import by_player, describe, learned_answers, record, second_looks
from etude.loops.learn import Trainer
from etude.loops.models import Models, Trained, policies_of, restore, saved
from etude.loops.roles import Party
from etude.loops.states import copied, join_tensors, split_tensors, untouched
from etude.loops.team import Team
from etude.loops.token_learning import TokenLearners, let_tilt
from etude.loops.update import Updater
from etude.policies.footprint import micro_tokens as fitting
from etude.policies.language import LanguagePolicy
from etude.policies.sparing import checkpoint_bytes
from etude.runtime import divided
from etude.runtime.checkpoints import load_json, load_tensors, save_json, save_tensors
from etude.runtime.ranks import ALONE

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod

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
        micro_tokens: padded tokens per micro-batch; changes memory and speed, not results. None: by the device.
        samplers: who plays the episodes of training; None: this process, with a bound by a copy of the policy.
        bound: how many training steps rows may be older than the policy that learns from them; samplers gather for so
            many steps ahead. None: as the method says.
        team: other ranks that take the updates too.
    """

    headline = "accuracy"

    def __init__(
        self, method: Method, task: LanguageTask, policy: LanguagePolicy, *, seed: int, steps: int,
        pool: Sequence[Problem] | None = None, micro_tokens: int | None = None, samplers: Samplers | None = None,
        bound: int | None = None, team: Team | None = None,
    ) -> None:  # fmt: skip
        self.team, self.ranks = team, ALONE if team is None else team.ranks
        self.task, self.policy, self.steps, self.seed = task, policy, steps, seed
        self.finished = 0
        own_parts = stages.bound(method)
        self.stages = [(until, complete_token(own)) for until, own in own_parts]
        self.others = [None if m is None else complete_token(m) for m in stages.others(method, own_parts)]
        self.stream = Stream(seed)
        if any(m.reads_value_head for m in self._methods()):
            policy.add_value_head()  # before the optimizer is built, even if only a later stage needs it
        pool = task.problems("train") if pool is None else pool
        self.dropped: Counter[str] = Counter()
        self.models: Models = {}
        self.party = Party(task, self.models, self.dropped)
        for name, own in policies_of(policy, [r for m in self._methods() for r in m.roles]).items():
            mine, limit = self.party.follows(self.method, name), self._limit(self.method)
            budget, learners = micro_tokens or fitting(own), self._learners(mine, own)
            self.models[name] = Trained(own, Updater(own, mine, steps, budget, limit, learners, self.ranks))
            self._begin_others(self.models[name].updater)
        self.gatherer = Gatherer(task, policy, pool, self._limit(self.method), self.dropped)
        bound = self.method.bound if bound is None else bound
        let_tilt(policy, self._methods(), lambda: self.updater.learners, bound)
        self.samplers = beside(task, policy) if bound and samplers is None else samplers
        self.ahead = Ahead(self.samplers, self.gatherer, bound, self) if bound and self.samplers else None
        self.differences = Differences()
        keeps_reference = any(REFERENCES & m.needs() for m in self._methods())
        self.trainer = Trainer(self.models, keeps_reference, team)
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
        return self.models[FIRST].updater

    def _limit(self, method: CompleteTokenMethod) -> int:
        return method.experience.max_tokens or self.task.max_tokens

    # One step

    def step(self) -> StepReport:
        """Gather a batch, learn from it, tell the parts what happened."""
        own, stream = self.method, self.stream.split("step", self.finished)
        method = self._chosen(own, stream)
        begun = time.monotonic()
        for model in self.models.values():
            model.policy.check_sampler()
            model.policy.work.clear()
        self.dropped.clear()
        if self.ahead is not None:
            self.ahead.reach(self.finished, self.steps)
        with untouched(method):
            assessed, rows, raced = self.party.gathered(
                method,
                method.experience.asks(method.problems),
                lambda count, number: self._assess(method, count, number, stream),
            )
        gathering = time.monotonic() - begun
        metrics = describe(assessed, self.task, method.experience.samples, self.dropped)
        metrics |= raced | by_player(assessed, self.task)
        if method.second_look is not None:
            metrics |= second_looks(assessed, method.second_look.stages)
        if method.experience.samples:
            metrics[METRIC] = self.differences.watch(assessed, method.rewards)
        metrics |= {name: float(count) for name, count in self.party.work(method).items()}
        if self.ahead is not None:
            self.updater.older = self.ahead.older(self.finished)
            metrics |= self.ahead.ages(self.finished)
        if any(map(len, rows.values())):
            rows, learned = self.trainer.learn(self.party.players(method), rows, self.finished, stream)
            metrics |= learned | learned_answers(rows.values())
        metrics |= self._told(method, metrics)
        if self.ahead is not None:
            self.ahead.done(self.finished)
        self.finished += 1
        self.trainer.refresh_reference(method.reference.refresh(self.finished) if method.reference else 0.0)
        if self.method is not own:
            self._begin_stage(own, self.method)
        ended = time.monotonic()
        tokens = sum(int(batch.attention_mask.sum()) for batch in rows.values())
        metrics["tokens_per_second"] = tokens / max(ended - begun, 1e-9)
        metrics["seconds/experience"], metrics["seconds/update"] = gathering, ended - begun - gathering
        return StepReport(metrics, [record(e, b, i) for b in rows.values() for i, e in enumerate(b.episodes)])

    def _chosen(self, own: CompleteTokenMethod, stream: Stream) -> CompleteTokenMethod:
        """The method that the step follows: the stage's own, or the other one where its chooser says so."""
        number, method, turn = self.stage, own, OWN
        if (other := self.others[number]) is not None:
            part, steps = own.stages[number], stages.span(self.stages, number, self.steps)
            assert part.chooser is not None
            if part.chooser.chooses_other(self.finished - steps.start, len(steps), stream.split("turn")):
                method, turn = other, OTHER if part.own_optimizer else OWN
        for model in self.models.values():
            model.updater.turn, model.updater.length = turn, self._limit(method)
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

    def _assess(self, method: CompleteTokenMethod, count: int, number: int, stream: Stream) -> Rows:
        """Gather rows for `count` problems, and score them, each player's by themselves."""
        context = self.context(method, stream.split("round", number))
        if self.ahead is None:
            rows = self.gatherer.gather(method, count, context)
        elif number:
            rows = self.ahead.again(self.finished, method, count, context)
        else:
            rows = self.ahead.rows(self.finished, method)
        return self.party.scored(method, rows, context)

    def plan(self, step: int) -> tuple[CompleteTokenMethod, Context]:
        """The method of a step, be it still to come, and what its parts may use to gather for it."""
        method = self.stages[stages.current(self.stages, step, self.steps)][1]
        return method, self.context(method, self.stream.split("step", step).split("round", 0), step)

    def context(self, method: CompleteTokenMethod, stream: Stream, step: int | None = None) -> Context:
        """What the parts may use during a step, this one where nothing else is said."""
        record = self.party.record(method)
        if self.policy.shadow or self.policy.autocast:
            record -= {"hidden"}  # of another precision than the trained weights'
        limit = self._limit(method)
        number = self.finished if step is None else step
        seats = self.party.seats(method)
        return Context(self.task, self.policy, stream, number, self.steps, limit, record, self.samplers, seats)

    def _learners(self, method: CompleteTokenMethod, policy: LanguagePolicy) -> TokenLearners:
        """The networks beside a policy, as they begin."""
        return TokenLearners(method, policy, self.stream.split("learners"), self.steps, self.ranks)

    def _begin_stage(self, before: CompleteTokenMethod, method: CompleteTokenMethod) -> None:
        """Let start anew what the stage says; all else goes on."""
        anew = stages.resets(method, self.stage)
        others = method.slots()["learners"] != before.slots()["learners"]
        for model in self.models.values():
            if method.critic != before.critic:
                model.updater.learners.begin_critic(method, model.policy)
            if "optimizer" in anew and others:
                model.updater.learners = self._learners(method, model.policy)
        self.begin_anew(anew)
        for model in self.models.values():
            self._begin_others(model.updater)

    def begin_anew(self, slots: Collection[str]) -> None:
        """Let the optimizer start with nothing remembered, the reference with the policy as it is, as `slots` says."""
        for name, model in self.models.items():
            if "optimizer" in slots:
                model.updater.restart(self.party.follows(self.method, name))
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
        moves = len(self.stages) > 1 or any(reference.moves for reference in references)
        twice = any(stage.own_optimizer for stage in self.method.stages)
        size = sum(checkpoint_bytes(model.policy, moves, twice) for model in self.models.values())
        return size + (0 if self.ahead is None else self.ahead.bytes)

    def save(self, folder: Path) -> None:
        """Weights (in Hugging Face's format under `model/`), optimizers, learners, parts' states, counters."""
        learned, found = split_tensors([m.state_dict() for m in self._methods()])
        (tensors, counters), begun = saved(self.models, folder), dict[str, Any]()
        if self.team is not None:
            self.team.save(folder, self.models[FIRST])
        if self.ahead is not None:
            begun["ahead"], more = self.ahead.save(folder)
            found |= more
        save_tensors(folder / "state.safetensors", {**tensors, **found})
        counters |= {"finished": self.finished, **self.differences.state_dict()}
        save_json(folder / "state.json", {"counters": counters, "parts": learned, **begun})

    def load(self, folder: Path) -> None:
        """Go back to exactly where `save` was called."""
        tensors, data = load_tensors(folder / "state.safetensors"), load_json(folder / "state.json")
        tensors |= divided.read(folder)
        self.finished = (counters := data["counters"])["finished"]
        for name, model in self.models.items():
            model.updater.learners = self._learners(self.method, model.policy)
            model.updater.restart(self.party.follows(self.method, name))
            self._begin_others(model.updater)
        restore(self.models, tensors, counters, folder)
        if self.team is not None:
            self.team.hand(self.models[FIRST], tensors, self.stage)
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
