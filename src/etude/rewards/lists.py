"""All answers to a problem shown to a judge at once, and what it says of each paid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.draws import Draw, uniforms
from etude.core.episodes import Problem, Segment, occurrences
from etude.core.errors import ConfigError, RewardError
from etude.core.fields import Count, NonNegative, Probability
from etude.core.slots import Context, GroupReward
from etude.core.task import spoken
from etude.core.worlds import World
from etude.policies.texts.models import read_once
from etude.rewards.judged import BAD_AFTER, View, WholeCompletion
from etude.rewards.judges import Case, Duel, Judge, Opinion, prompt_of
from etude.rewards.pair_judges import SimulatedJudge
from etude.rewards.verdicts import listed, names_of, verdict_of
from etude.runtime.checkpoints import newest_model

if TYPE_CHECKING:
    from etude.core.method import Method

Answers = tuple[str, Sequence[str]]
"""What was asked, and the answers in the order in which they are shown."""


class ListwiseJudge(Judge):
    """A language model that is shown answers under names and writes a verdict, a score for each (arXiv:2506.03637).

    Verdicts are written greedily and read as `verdict_of` reads them. Which answer has which name is drawn anew for
    every list; two answers are shown in both orders. A verdict without a number in range for each answer is none, and
    neither is one on a list that is too long for the model. With a chat template it is asked in a user's message.

    Args:
        model: the run, the folder or the hub name of what learned to write them (`etude train reward-anything`).
        asked: what stands before the answers, a principle in it; {prompt} is filled in.
        worst, best: the scores that are worth 0 and 1.
        max_tokens: of a verdict.

    Raises: ConfigError for a text that cannot be filled in, or no range.

    >>> ListwiseJudge(asked="Shorter is better. {prompt}").shown(("2+5=", ["7", "it is 7"]))
    'Shorter is better. 2+5=\\nA:7\\nB:it is 7\\n'
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # it reads text

    model: str = ""
    asked: str = "{prompt}"
    worst: float = 1.0
    best: float = 5.0
    max_tokens: Count = 512

    def check(self) -> None:
        if not self.worst < self.best:
            raise ConfigError(f"ListwiseJudge.worst must be below best, got {self.worst:g} and {self.best:g}.")
        try:
            self.asked.format(prompt="")
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"ListwiseJudge.asked may have {{prompt}} in it ({error!r}), got {self.asked!r}."
            ) from None
        object.__setattr__(self, "model", newest_model(self.model))  # named as it is now: a run may go on

    def objection(self, method: Method) -> str | None:
        return None if self.model else "has no model to ask: name a folder or a run, as in model=runs/judge."

    def shown(self, answers: Answers) -> str:
        """What the model is asked."""
        prompt, said = answers
        return listed(self.asked.format(prompt=prompt), said)

    def scores(self, cases: Sequence[Case], context: Context) -> list[float | None]:
        found = self._judged([(case.prompt, [case.given]) for case in cases], context)
        return [None if own is None else own[0] for own in found]

    def compare(self, duels: Sequence[Duel], context: Context) -> list[Opinion | None]:
        both = [(prompt_of(d.problem), pair) for d in duels for pair in ([d.first, d.second], [d.second, d.first])]
        said = self._counted(both, context)
        return [None if a is None or b is None else Opinion(_ahead(*a), 1 - _ahead(*b))
                for a, b in zip(said[::2], said[1::2])]  # fmt: skip

    def rank(self, lists: Sequence[tuple[Problem, Sequence[str]]], context: Context) -> list[list[float] | None]:
        numbers = occurrences([problem for problem, _ in lists])
        orders = [drawn_order(p, n, len(said), context) for (p, said), n in zip(lists, numbers)]
        found = self._counted([(prompt_of(p), [said[i] for i in o]) for (p, said), o in zip(lists, orders)], context)
        return [None if own is None else [own[o.index(i)] for i in range(len(o))] for own, o in zip(found, orders)]

    def _judged(self, lists: Sequence[Answers], context: Context) -> list[list[float] | None]:
        """What each answer of each list is worth, in [0, 1]."""
        said = self._verdicts([self.shown(one) for one in lists], context)
        return [None if text is None else self._read(text, len(own)) for text, (_, own) in zip(said, lists)]

    def _counted(self, lists: Sequence[Answers], context: Context) -> list[list[float] | None]:
        """The same, lists and failures counted in the step's metrics; `score` counts its cases itself."""
        said = self._judged(lists, context)
        if (work := getattr(context.policy, "work", None)) is not None:
            work.update({f"judge/{self.name}/asked": len(lists), f"judge/{self.name}/failed": said.count(None)})
        return said

    def _verdicts(self, texts: Sequence[str], context: Context) -> list[str | None]:
        """What the model writes to each text, as far as its context goes; None where there is no room at all."""
        from etude.policies.chat import opening
        from etude.policies.sampling import Sampling

        model = read_once(self, self.model, context.policy)
        talks = bool(model.tokenizer.chat_template)
        heads = [[spoken({"role": "user", "content": t}) if talks else Segment("user", t)] for t in texts]
        asked = [[token for part in opening(head, model) for token in part] for head in heads]
        able = [i for i, tokens in enumerate(asked) if len(tokens) < model.context]
        greedy = Sampling(temperature=0.0, max_tokens=self.max_tokens)
        said = model.generate([asked[i] for i in able], greedy, [Draw.at(0, texts[i]) for i in able])
        found = {i: model.decode(completion.tokens) for i, completion in zip(able, said)}
        return [found.get(i) for i in range(len(texts))]

    def _read(self, text: str, count: int) -> list[float] | None:
        numbers = verdict_of(text).numbers
        found = [numbers[name] for name in names_of(count) if name in numbers]
        if len(found) < count or not all(self.worst <= x <= self.best for x in found):
            return None
        return [(x - self.worst) / (self.best - self.worst) for x in found]


def _ahead(one: float, other: float) -> float:
    return (1 + (one > other) - (one < other)) / 2


def drawn_order(problem: Problem, number: int, count: int, context: Context) -> list[int]:
    """Which of `count` answers is shown where, the `number`-th time that this step meets the problem."""
    key = context.stream.draw("problem", problem.id, number).child("names").key
    order: list[int] = uniforms(torch.tensor([key]), 0, count)[:, 0].argsort().tolist()
    return order


class RankedByJudge(GroupReward):
    """weight * what a judge says of a completion who sees it among all those of its problem.

    A judge of lists scores them in one go, one of pairs says how likely each beats the others, any other scores each by
    itself. A completion with nothing to see is left out of the list and worth 0, and all of a problem are worth 0 of
    whose list the judge says nothing.

    Shapes: scores [B] -> [B].

    Args:
        judge: who ranks.
        sees: what it sees of a completion.
        bad_share: the run stops once more than this share of at least 100 lists had no answer; 1 for never.

    Raises: RewardError, naming the problem.

    >>> from types import SimpleNamespace as Of
    >>> from etude.core.episodes import Episode
    >>> said = [Episode(Problem("p/1", "how much?"), [Segment("assistant", text)]) for text in ("1", "5", "3")]
    >>> rows = Of(episodes=said, group=torch.zeros(3), scores=torch.zeros(3), once=lambda: None)
    >>> run = Of(policy=None, task=Of(score=lambda problem, text: float(text)))
    >>> RankedByJudge(judge=SimulatedJudge(beta=None)).bind().rescore_in(rows, run).tolist()
    [0.0, 1.0, 0.5]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # it reads text

    judge: Judge = SimulatedJudge()
    sees: View = WholeCompletion()
    weight: NonNegative = 1.0
    bad_share: Probability = 0.01

    def objection(self, method: Method) -> str | None:
        if method.completions == 1:
            return "ranks the completions of a problem, and there is one of each: set experience.size to 2 or more."
        return None

    def initial_state(self) -> dict[str, Any]:
        return {"lists": 0, "failed": 0}

    def rescore_in(self, batch: TokenBatch, context: Context) -> Tensor:
        if (once := batch.once()) is not None:
            first, whose = once
            return self.rescore_in(batch.rows(first), context)[whose]
        seen = {i: case.given for i, e in enumerate(batch.episodes) if (case := self.sees.case(e.whole, context))}
        rows = [[i for i in own.nonzero()[:, 0].tolist() if i in seen] for own in _groups(batch)]
        rows = [own for own in rows if own]
        lists = [(batch.episodes[own[0]].problem, [seen[i] for i in own]) for own in rows]
        said = self.judge.rank(lists, context)
        self._count([problem for problem, _ in lists], said)
        paid = {i: value for own, values in zip(rows, said) for i, value in zip(own, values or ())}
        worth = batch.scores.new_tensor([paid.get(i, 0.0) for i in range(len(batch.episodes))])
        return batch.scores + self.weight * worth

    def _count(self, problems: Sequence[Problem], said: Sequence[list[float] | None]) -> None:
        self.state["lists"] += len(said)
        self.state["failed"] += said.count(None)
        count, bad = self.state["lists"], self.state["failed"]
        if None in said and count >= BAD_AFTER and bad > self.bad_share * count:
            raise RewardError(
                f"{self.judge.name} had no answer for {bad} of {count} lists, more than bad_share={self.bad_share:g}, "
                f"the last for answers to problem {problems[said.index(None)].id!r}. {self.judge.why} Mend the judge, "
                "or raise bad_share."
            )


def _groups(batch: TokenBatch) -> list[Tensor]:
    """Of each group which rows are its [B]."""
    return [batch.group == group for group in batch.group.unique()]
