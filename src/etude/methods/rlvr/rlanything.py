"""RLAnything: policy, judge of steps and tasks are trained in one loop (arXiv:2602.02488).

Changes GRPO in three places. A completion is a chain of steps k (here: what `separator` ends), and

1. reward: a judge phi gives m = 3 verdicts S_ikl in {-1, +1} on every step, and a step earns

       R_ik = O_i + lambda mean_l S_ikl,   O_i = 1 if solved, else `failure`;

   phi earns rho_ikl = R_ik S_ikl for a verdict (-2 for one that cannot be read), standardised over the m verdicts of
   the step, on problems solved between 0.2 and 0.8 of the time, and takes clipped policy gradient steps on it;
2. advantages: R_ik standardised over the completions of a problem that have a k-th step, the same for all its tokens;
   only problems solved between 1/8 and 7/8 of the time, KL (k3) 0.01, four updates per batch;
3. curriculum: a task in a slot that is solved at least 0.8 (at most 0.2) of the time is proposed in a harder (easier)
   variant, which is rolled out the next time and takes the slot if `accepted`; otherwise it is forgotten.

Here phi is a small network on the policy's own hidden states before and after a step, sampled as a Bernoulli policy;
the environment model is the task's generator, which draws a problem of the next difficulty (`problem.level`). A slot
stands for a difficulty and draws a fresh problem on every visit. Summaries of failures have no counterpart. A failure
is worth -1 here, so that it speaks against its steps; the released code (Gen-Verse/Open-AgentRL) has 0 for agents. A
k-th step that only one completion has is compared with none and gets 0; that code leaves it as it is. As there,
completions of proposals that were turned down are not learned from.

`unit_test_rewards` is the coding variant's judge: what a generated unit test earns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from etude.core.batches import Problem, TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.fields import Count, Fraction, NonNegative, Positive, Probability, WholeNumber
from etude.core.method import Claim
from etude.core.slots import Advantages, Context, Curriculum, Filter, TokenReward
from etude.core.streams import Stream
from etude.curricula.prioritised import difficulty
from etude.methods.rlvr.grpo import grpo
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.optimizers.learner import descend, learner
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference

UNREADABLE = -2.0
"""What a verdict that is neither -1 nor +1 earns."""
MEMORY = 20
"""Batches over which the judge averages what features are usually like."""
NOTHING = 1e-6
"""Standard deviation up to which rewards are equal."""


def accuracy(batch: TokenBatch) -> Tensor:
    """[B] share of the completions of each row's problem that are solved."""
    assert batch.solved is not None
    _, index = torch.unique(batch.group, return_inverse=True)
    count = torch.bincount(index).double()
    return (torch.zeros_like(count).index_add(0, index, batch.solved.double()) / count)[index]


def standardised(values: Tensor, index: Tensor) -> Tensor:
    """[N] values less the mean of all with the same index, over their standard deviation; 0 where all are equal."""
    count = torch.bincount(index).to(values)[index]

    def mean(x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, index, x)[index] / count

    centred = values - mean(values)
    spread = mean(centred**2).sqrt()
    return torch.where(spread > NOTHING, centred / spread.clamp(min=NOTHING), 0.0)


def consistency(rewards: Tensor, verdicts: Tensor) -> Tensor:
    """[N, m] what verdicts (-1, +1, or 0: unreadable) on steps of these rewards [N] earn the judge.

    >>> consistency(torch.tensor([1.5]), torch.tensor([[1, -1, 0]])).tolist()
    [[1.5, -1.5, -2.0]]
    """
    return torch.where(verdicts == 0, UNREADABLE, rewards[:, None] * verdicts)


def verdict_advantages(rewards: Tensor, verdicts: Tensor) -> Tensor:
    """[N, m] earnings standardised over the verdicts of each step; 0 where all earned the same."""
    earned = consistency(rewards, verdicts)
    step = torch.arange(len(earned), device=earned.device)[:, None].expand_as(earned)
    return standardised(earned.flatten(), step.flatten()).view_as(earned)


class StepVerdicts(TokenReward):
    """R_ik = O_i + weight * mean_l S_ikl on the last token of each step, by a judge that learns along.

    The judge is a network of one hidden layer on the policy's states before a step's first token and before the token
    that ends it, which has seen what the step says, standardised by their running mean and deviation (unstandardised,
    what all steps have in common is learned first, and a judge that says the same of all learns no more).
    z = its output, P(S = +1) = 1 / (1 + exp(-z)). It learns in `epochs` clipped steps after every batch. Weights,
    moments and the running figures are in `state`.

    Leaves `extras["step"]` [B, T], the number of the step a token belongs to (-1 outside), and `extras["verdicts"]`
    [B, T, m] at the tokens that end steps. Every reward of a method that pays on these tokens counts in R_ik.

    Args:
        separator: text that ends a step; a completion without it is one step.
        verdicts: m. weight: lambda. failure: O of what is not solved.
        low, high: the share of a problem's completions that must be solved for the judge to learn from it.
        width, lr, epochs, clip: of the judge and its steps.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"hidden", "text"})
    separator: str = ","
    verdicts: Count = 3
    weight: NonNegative = 1.0
    failure: Literal[-1, 0] = -1
    low: Probability = 0.2
    high: Probability = 0.8
    width: Count = 32
    lr: Positive = 3e-3
    epochs: WholeNumber = 4
    clip: Fraction = 0.2

    def check(self) -> None:
        if not self.separator:
            raise ConfigError("StepVerdicts.separator must be the text that ends a step, got none.")
        if self.low > self.high:
            raise ConfigError(f"StepVerdicts.low must be at most high, got {self.low} and {self.high}.")

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        assert batch.solved is not None
        ends = batch.action_mask & self._separates(context.policy.tokenizer).to(batch.tokens.device)[batch.tokens]
        step, ends = steps(batch, ends)
        features = self._features(batch, step, ends)
        if not self.state:
            self.state.update(fresh_judge(features.shape[1], self.width, context.stream.split("judge")))
        self._watch(features)
        chance = self.judge(features, self.state["weights"]).sigmoid()
        random = context.stream.split("verdicts").torch
        drawn = torch.rand(len(features), self.verdicts, generator=random, dtype=torch.float64)
        said = 2.0 * (drawn < chance[:, None]).double() - 1
        verdicts = torch.zeros(*step.shape, self.verdicts, dtype=torch.float64, device=step.device)
        verdicts[ends] = said.to(step.device)
        batch.extras |= {"step": step, "verdicts": verdicts}
        outcome = torch.where(batch.solved, 1.0, float(self.failure))[:, None]
        return ((outcome + self.weight * verdicts.mean(-1)) * ends).to(batch.rewards)

    def before_update(self, batch: TokenBatch) -> None:
        """Let the judge learn from the problems that are neither too hard nor too easy."""
        rows = ((accuracy(batch) >= self.low) & (accuracy(batch) <= self.high)).nonzero()[:, 0]
        if len(rows) and self.epochs:
            self._learn(batch.rows(rows))

    def judge(self, features: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """[N] z of steps with these features [N, 2 H]."""
        features = (features - self.state["mean"]) / (self.state["square"] - self.state["mean"] ** 2 + 1e-4).sqrt()
        return (features @ weights["in"] + weights["bias"]).tanh() @ weights["out"] + weights["offset"]

    def _watch(self, features: Tensor) -> None:
        """Keep up what is usual of features: what all steps have in common says nothing about one of them."""
        seen = self.state["seen"] = min(self.state["seen"] + 1, MEMORY)
        for name, value in (("mean", features.mean(0)), ("square", (features**2).mean(0))):
            self.state[name] = self.state[name] + (value - self.state[name]) / seen

    def _learn(self, batch: TokenBatch) -> None:
        ends = (batch.extras["verdicts"] != 0).any(-1)
        features, said = self._features(batch, batch.extras["step"], ends), batch.extras["verdicts"][ends].cpu()
        mine = verdict_advantages(batch.rewards[ends].cpu().double(), said)
        useful = mine.any(1)
        if not bool(useful.any()):
            return
        features, said, mine = features[useful], said[useful], mine[useful]
        rows = _rows(said, self._logp(features, said, self.state["weights"]), mine)
        for _ in range(self.epochs):
            descend(self.state, lambda w: self._loss(rows, self._logp(features, said, w)), self.lr)

    def _loss(self, rows: TokenBatch, logp: Tensor) -> Tensor:
        return ClippedSurrogate(low=self.clip, high=self.clip)(rows, TokenLogProbs(logp)).mean()

    def _logp(self, features: Tensor, verdicts: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """[N, m] log-probability of verdicts."""
        return torch.nn.functional.logsigmoid(verdicts * self.judge(features, weights)[:, None])

    def _features(self, batch: TokenBatch, step: Tensor, ends: Tensor) -> Tensor:
        """[N, 2 H] states before the first token of each step and before the one that ends it, each of unit size."""
        hidden = batch.extras["hidden"]
        first = step.diff(dim=1, prepend=torch.full_like(step[:, :1], -1)) != 0
        first &= step >= 0
        both = torch.stack([hidden[first], hidden[ends]], 1).detach().cpu().double()
        size = (both**2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6)
        return (both / size).flatten(1)

    def _separates(self, tokenizer: Any) -> Tensor:
        """[V] which tokens hold the separator."""
        if self.__dict__.get("_tokenizer") is not tokenizer:
            found = [self.separator in tokenizer.decode([i]) for i in range(len(tokenizer))]
            object.__setattr__(self, "_found", torch.tensor(found))
            object.__setattr__(self, "_tokenizer", tokenizer)
        table: Tensor = self.__dict__["_found"]
        return table


def steps(batch: TokenBatch, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Number of the step that each token belongs to, -1 outside, and the tokens that end one, both [B, T].

    Args:
        ends: [B, T] tokens that end a step; the last action token of a turn always does.
    """
    following = torch.nn.functional.pad(batch.action_mask[:, 1:], [0, 1])
    ends = batch.action_mask & (ends | ~following)
    step = ends.long().cumsum(1) - ends.long()
    return torch.where(batch.action_mask, step, -1), ends


def fresh_judge(size: int, width: int, stream: Stream) -> dict[str, Any]:
    """A judge of features [N, size] that says +1 half of the time."""
    weights = torch.randn(size, width, generator=stream.torch, dtype=torch.float64) / size**0.5
    bias, out = torch.zeros(2, width, dtype=torch.float64)
    usual = {"mean": weights.new_zeros(size), "square": weights.new_ones(size), "seen": 0}
    return learner({"in": weights, "bias": bias, "out": out, "offset": out.new_zeros(1)}) | usual


def _rows(verdicts: Tensor, logp: Tensor, advantages: Tensor) -> TokenBatch:
    """Steps as rows whose tokens are the verdicts on them."""
    everything, nothing = torch.ones_like(verdicts, dtype=torch.bool), torch.zeros(len(verdicts), dtype=torch.float64)
    return TokenBatch(
        tokens=verdicts.long(), attention_mask=everything, action_mask=everything, behaviour_logp=logp.detach(),
        rewards=advantages, group=nothing.long(), weights=nothing + 1, scores=nothing, truncated=nothing.bool(),
        advantages=advantages,
    )  # fmt: skip


class StepAdvantage(Advantages):
    """What the steps of a completion were paid, standardised at each step number over the problem's completions.

    A_ik = (R_ik - mean_j R_jk) / std_j R_jk over the completions j that have a k-th step, 0 where all are equal; every
    token of the step has it. Steps are `extras["step"]`. Shapes: [B, T].
    """

    def objection(self, method: Any) -> str | None:
        if any(isinstance(part, StepVerdicts) for part in getattr(method, "rewards", ())):
            return None
        return "compares steps, and no reward says where they are: add step-verdicts to the rewards."

    def __call__(self, batch: TokenBatch) -> Tensor:
        step = batch.extras["step"]
        count = int(step.max()) + 1
        place = step.clamp(min=0)
        inside = (step >= 0).to(batch.rewards)
        paid = torch.zeros(len(batch), count, dtype=batch.rewards.dtype, device=step.device)
        paid = paid.scatter_add(1, place, batch.rewards * inside)
        has = torch.zeros_like(paid).scatter_add(1, place, inside) > 0
        _, group = torch.unique(batch.group, return_inverse=True)
        cell = (group[:, None] * count + torch.arange(count, device=step.device))[has]
        found = torch.zeros_like(paid)
        found[has] = standardised(paid[has].double(), cell).to(paid)
        return found.gather(1, place) * inside


class SolvedBand(Filter):
    """Problems of which the solved share is in [low, high], without those that were proposed and turned down."""

    low: Probability = 1 / 8
    high: Probability = 7 / 8

    def check(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"SolvedBand.low must be at most high, got {self.low} and {self.high}.")

    def weigh(self, batch: TokenBatch) -> Tensor:
        share = accuracy(batch)
        wanted = torch.tensor([not e.info.get("turned_down") for e in batch.episodes], device=share.device)
        inside = (share >= self.low - 1e-9) & (share <= self.high + 1e-9)
        return (inside & wanted).to(batch.scores.dtype)


def wish(share: float, low: float = 0.2, high: float = 0.8) -> int:
    """Which variant a task that was solved so often should have: 1 harder, -1 easier, 0 none."""
    return int(share >= high) - int(share <= low)


def accepted(direction: int, old: float, new: float, low: float = 0.2, high: float = 0.8) -> bool:
    """Whether a variant that was solved `new` of the time replaces a task that was solved `old` of the time."""
    return low <= new < old if direction > 0 else old < new <= high


class AdaptedTasks(Curriculum):
    """Slots that each hold a difficulty, made harder or easier by how often their problems are solved.

    Difficulties are the pool's levels in the order of the numbers in them. A slot's problem is drawn afresh on every
    visit. In `state`: each slot's level, what it proposes and what it was solved before, and counts of the outcomes.

    Args:
        slots: how many; visited in turn.
        size: so many of the pool's problems are drawn from.
        low, high: the band of the share that is solved.
        adapt: whether anything is proposed.
    """

    slots: Count = 32
    size: Count = 2000
    low: Probability = 0.2
    high: Probability = 0.8
    adapt: bool = True

    def objection(self, method: Any) -> str | None:
        if getattr(method, "problems", 0) > self.slots:
            return (
                f"has {self.slots} slots for {method.problems} problems a step, and a slot gives one: set "
                "curriculum.slots to at least as many."
            )
        return None

    def initial_state(self) -> dict[str, Any]:
        return {"levels": [], "proposed": {}, "turn": 0, "visited": [], "accepted": 0, "turned_down": 0}

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        known, random, state = self._known(pool), stream.numpy, self.state
        if not state["levels"]:
            names = [pool[int(i)].level for i in random.integers(min(self.size, len(pool)), size=self.slots)]
            state["levels"] = [list(known).index(name) for name in names]
        state["visited"] = [(state["turn"] + i) % self.slots for i in range(count)]
        state["turn"] = (state["turn"] + count) % self.slots
        names, levels = list(known), [self.level(slot) for slot in state["visited"]]
        return [known[names[k]][int(random.integers(len(known[names[k]])))] for k in levels]

    def level(self, slot: int) -> int:
        """The difficulty that a slot's next problem has: the proposed one, if there is one."""
        proposal = self.state["proposed"].get(str(slot))
        return int(self.state["levels"][slot] + proposal[0] if proposal else self.state["levels"][slot])

    def before_update(self, batch: TokenBatch) -> None:
        if not self.adapt:
            return
        seen = dict(zip(batch.group.tolist(), accuracy(batch).tolist()))
        turned_down = {g for g, share in seen.items() if not self._judge(self.state["visited"][g], share)}
        for episode, group in zip(batch.episodes, batch.group.tolist()):
            if group in turned_down:
                episode.info["turned_down"] = True

    def _judge(self, slot: int, share: float) -> bool:
        """Settle a slot's proposal, or make one; False if a proposal was turned down."""
        state, key = self.state, str(slot)
        if key in state["proposed"]:
            direction, old = state["proposed"].pop(key)
            if not accepted(direction, old, share, self.low, self.high):
                state["turned_down"] += 1
                return False
            state["levels"][slot] += direction
            state["accepted"] += 1
            return True
        direction = wish(share, self.low, self.high)
        if direction and 0 <= state["levels"][slot] + direction < len(self.__dict__["_problems"]):
            state["proposed"][key] = [direction, share]
        return True

    def _known(self, pool: Sequence[Problem]) -> dict[str, list[Problem]]:
        """The problems that are drawn from by level, easy levels first; read once."""
        if self.__dict__.get("_pool") is not pool:
            problems = [pool[i] for i in range(min(self.size, len(pool)))]
            names = sorted({p.level for p in problems}, key=difficulty)
            object.__setattr__(self, "_problems", {n: [p for p in problems if p.level == n] for n in names})
            object.__setattr__(self, "_pool", pool)
        found: dict[str, list[Problem]] = self.__dict__["_problems"]
        return found


def unit_test_rewards(passes: Tensor, right: Tensor) -> Tensor:
    """[N] what generated tests earn: those that all right codes pass, how many wrong ones they fail; others, less how
    many wrong ones they pass; 1 and -1 if no code is wrong.

    Args:
        passes: [N, M] whether code j passes test i. right: [M] whether a code passes the true tests.

    >>> unit_test_rewards(torch.tensor([[1, 0, 0], [0, 1, 0]]).bool(), torch.tensor([1, 0, 0]).bool()).tolist()
    [2.0, -1.0]
    """
    wrong = ~right
    sound = (passes | wrong).all(1)
    gains, costs = ((~passes) & wrong).sum(1), (passes & wrong).sum(1)
    if not bool(wrong.any()):
        gains, costs = torch.ones_like(gains), torch.ones_like(costs)
    return torch.where(sound, gains, -costs).double()


rlanything = grpo.replace(
    id="rlanything",
    title="RLAnything: Forge Environment, Policy, and Reward Model in Completely Dynamic RL System",
    paper="arXiv:2602.02488",
    curriculum=AdaptedTasks(),
    rewards=(StepVerdicts(),),
    filters=(SolvedBand(),),
    advantages=StepAdvantage(),
    regularizers=(KLToReference(coefficient=0.01),),
    reference=Frozen(),
    minibatches=4,
    claim=Claim(
        statement="Judge and adapted tasks each add to the success that the outcome alone brings; the judge comes to "
        "agree with which steps are right, and adapted tasks stay longer between 0.2 and 0.8 of success.",
        baseline="grpo",
        task="sums",
        steps=40,
        seeds=3,
        experiment="etude.evaluation.rlvr.rlanything:experiment",
    ),
)
