"""Open-RS: reinforcement learning for reasoning in small models, on a small budget (arXiv:2503.16219).

A study of GRPO on a model that is already strong, but verbose, under a limit of length. `open-rs` is its third
experiment, which changes GRPO in four places:

1. the reward is the cosine reward, weighted 2: right answers fall from 1 to 0.5 with their length, wrong ones rise
   from -1 to -0.5; instead of 1 for a right answer and 0 for any other;
2. a completion in the right form gets 1 more (the task finds an answer in it and it was not cut);
3. data are curated: few problems, and of those none that is trivial or hopeless;
4. G = 6 at temperature 0.7; the rate rises over 10 % of the steps and falls as a cosine to 10 % of its height.

The first two experiments, `accuracy_and_format`, pay 1 for a right answer instead of the cosine: one on hard problems
only, the other on hard and easy ones.

The paper curates once, by whether other models solve a problem; here the policy's own groups measure it. Differences
from the released code (knoveleng/open-rs): it measures a completion in characters, of which 1,000 are full length (its
recipe sets no other), and lets the cosine wrap beyond; here length is in tokens, the completion limit is full length,
and the cosine is clamped. Its recipe leaves the KL term of its trainer (TRL of February 2025) at the default, 0.04 k3
to the first policy; here, as in GRPO, there is none: `--with kl-to-reference` adds just that.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, Probability
from etude.core.slots import Context, Curriculum, Reward
from etude.core.streams import Stream
from etude.curricula.outcomes import Outcomes
from etude.curricula.uniform import Uniform
from etude.experience.groups import Groups
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Cosine
from etude.rewards.length import CosineReward, answered
from etude.rewards.patterns import FormatReward
from etude.tasks.pool import Pool

DRAWS = 20
"""How often to draw again in place of problems that were dropped, before taking what comes."""


class AccuracyReward(Reward):
    """`weight` for a right answer, 0 for a wrong one and for a completion that was cut, which has none.

    >>> from types import SimpleNamespace as Run
    >>> episode, right = Episode(Problem("sum/1", "1+1=", "2")), Run(task=Run(success=lambda episode: True))
    >>> AccuracyReward(weight=2.0).score([episode], right)
    [2.0]
    """

    weight: NonNegative = 1.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self.weight * answered(e, context) for e in episodes]


class Curated(Curriculum):
    """The first `size` problems of the pool, without those found trivial or hopeless.

    After `visits` groups a problem is judged by the share of its completions that were right, and left out if that is
    at most `hopeless` or at least `trivial`. If nothing else is left, problems that were left out come back.

    Args:
        of: in which order problems come.
        outcomes: the record that shares are read from.

    Shapes: learns from solved [B] of every scored batch.

    >>> part = Curated(visits=2).bind()
    >>> for share in (1.0, 1.0):
    ...     part.outcomes.visit("easy", share)
    >>> part.outcomes.rate("easy"), part.keeps("easy"), part.keeps("new")
    (1.0, False, True)
    """

    size: Count = 7000
    visits: Count = 2
    hopeless: Probability = 0.0
    trivial: Probability = 1.0
    of: Curriculum = Uniform()
    outcomes: Outcomes = Outcomes(history=4)

    def check(self) -> None:
        if self.hopeless >= self.trivial:
            raise ConfigError(
                f"Curated.hopeless must be below Curated.trivial, got {self.hopeless} and {self.trivial}."
            )
        if self.visits > self.outcomes.history:
            raise ConfigError(
                f"Curated.visits must be at most the {self.outcomes.history} that are remembered, got {self.visits}."
            )

    def before_update(self, batch: TokenBatch) -> None:
        self.outcomes.note(batch)

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        few = Pool(lambda i: pool[i], min(self.size, len(pool)))
        problems: list[Problem] = []
        for _ in range(DRAWS):
            problems += [p for p in self.of.choose(few, count - len(problems), stream) if self.keeps(p.id)]
            if len(problems) == count:
                return problems
        return problems + self.of.choose(few, count - len(problems), stream)

    def keeps(self, problem: str) -> bool:
        """Whether a problem has not been left out."""
        seen = len(self.outcomes.state["visits"].get(problem, ()))
        share = self.outcomes.rate(problem)
        return seen < self.visits or share is None or self.hopeless < share < self.trivial


open_rs = grpo.replace(
    id="open-rs",
    title="Reinforcement Learning for Reasoning in Small LLMs: What Works and What Doesn't",
    paper="arXiv:2503.16219",
    row="analysis",
    curriculum=Curated(),
    experience=Groups(size=6, temperature=0.7),
    rewards=(CosineReward(weight=2.0), FormatReward(weight=1.0)),
    optimizer=AdamW(warmup=0.1, schedule=Cosine(floor=0.1)),
    claim=Claim(
        statement="Under a limit that cuts most answers to hard problems, a cosine reward makes lengths more even at "
        "equal accuracy.",
        task="sums",
        measures=(
            Measure(name="accuracy", direction="equal"),
            Measure(name="unevenness of lengths", direction="lower", smallest=0.05, bounds=(0.0, None)),
            Measure(name="lengths of one problem", role="mechanism", direction="lower", smallest=0.1),
            Measure(name="cut", role="mechanism", direction="equal", smallest=0.05, minimum=0.2),
            Measure(name="tokens of hard problems", role="mechanism", direction="lower", smallest=0.25),
            Measure(name="hard alone, gained early", role="mechanism"),
            Measure(name="hard alone, lost late", role="mechanism", direction="lower"),
        ),
        learned_on="accuracy",
        paper_effect="lengths more consistent at averages of 56.3 (cosine) and 55.7 (accuracy) over five sets; hard "
        "problems alone lose accuracy after 150 to 200 steps; AMC23 63% to 80%",
    ),
)

accuracy_and_format = open_rs.replace(rewards=(AccuracyReward(), FormatReward()))
"""The first two experiments, which differ from each other in their problems only."""
