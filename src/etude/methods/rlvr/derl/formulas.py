"""A small policy over arithmetic formulas that can only write grammatical ones, and how it learns which are good.

S  symbols,  N  formulas,  L  longest formula, its end included,  W  width of the network
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean, GroupStd
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.draws import uniforms
from etude.core.errors import ConfigError
from etude.core.fields import Count, Ge, NonNegative, WholeNumber
from etude.core.learners import Learning
from etude.core.slots import TokenAdvantages
from etude.core.step_slots import StepOptimizer
from etude.core.streams import Stream
from etude.learners.small import SmallLearner, upgraded_learning
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.optimizers.adam import AdamW
from etude.optimizers.learner import descend, learner
from etude.regularizers.kl import KLToReference

END = ""
OPERATORS = ("+", "-", "*", "/")
NUMBERS = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.8", "1", "2")
SYMBOLS = ("g1", "g2", "g3", "g4", *NUMBERS, *OPERATORS, "(", ")", END)
EXAMPLES = 32
"""Formulas of the cold start."""


class FormulaPolicy(SmallLearner):
    """An LSTM over the symbols of formulas; symbols that cannot lead to a formula of `length` symbols have no chance.

    `learn` takes GRPO's steps on formulas and what they scored: clipped surrogate summed over a formula's symbols,
    mean over formulas, plus k3 KL to the policy after the cold start. That is supervised: weighted sums of random
    primitives with random weights. All its weights, moments and the reference are in `state`.

    Args:
        symbols: what formulas are made of; the empty one ends them.
        length: most symbols, the end included.
        cold: steps of the supervised start.
        kl: coefficient of the KL to the policy after the cold start.
        credit: what scores become advantages by.
        learning: its steps, `epochs` of them on each group of formulas; the cold start's are of the same size.

    Shapes: formulas [N, L] numbers of symbols.

    >>> FormulaPolicy(symbols=("", "g1", "+", "2")).text(torch.tensor([[1, 2, 3, 0]]))
    ['g1+2']
    """

    symbols: tuple[str, ...] = SYMBOLS
    length: Annotated[int, Ge(2)] = 16
    width: Count = 32
    cold: WholeNumber = 30
    kl: NonNegative = 1e-3
    credit: TokenAdvantages = GroupAdvantage(centre=GroupMean(), scale=GroupStd())
    learning: Learning = Learning(optimizer=AdamW(lr=1e-2, clip_norm=None), epochs=4)

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return upgraded_learning(cls, values)

    def check(self) -> None:
        if END not in self.symbols or not any(s[:1].isalnum() for s in self.symbols):
            raise ConfigError("FormulaPolicy.symbols must hold the empty symbol, which ends a formula, and an operand.")

    def begin(self, stream: Stream) -> None:
        """Make the network and show it weighted sums, once."""
        if self.state:
            return
        random = stream.split("formulas").torch
        size, width = len(self.symbols), self.width
        shapes = {"read": (size + 1, 4 * width), "recur": (width, 4 * width), "head": (width, size)}
        weights = {k: torch.randn(s, generator=random, dtype=torch.float64) / s[0] ** 0.5 for k, s in shapes.items()}
        weights["head"] = 0.1 * weights["head"]
        self.state.update(learner(weights))
        examples = self._examples(stream)
        if len(examples):
            assert isinstance(self.learning.optimizer, StepOptimizer)
            cold = self.learning.optimizer
            descend(self.state, lambda w: -self.say(examples, w)[0].sum(1).mean(), cold, self.cold)
        self.state.update(learner(self.state["weights"]))  # without the moments of the cold start
        self.state["reference"] = {k: w.clone() for k, w in self.state["weights"].items()}

    def write(self, count: int, stream: Stream) -> Tensor:
        """Sample formulas [count, L]; after its end a row is filled up with ends."""
        keys = [stream.draw("formula", number).key for number in range(count)]
        uniform = uniforms(torch.tensor(keys), 0, self.length)

        def draw(place: int, logp: Tensor) -> Tensor:
            below = logp.exp().cumsum(1)
            drawn = (below <= uniform[place, :, None] * below[:, -1:]).sum(1)
            return drawn.clamp(max=len(self.symbols) - 1)

        with torch.no_grad():
            return self._unroll(self.state["weights"], count, draw)[0]

    def say(self, symbols: Tensor, weights: dict[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Log-probability of each symbol [N, L], 0 after the end, and which symbols count [N, L]."""
        held = self.state["weights"] if weights is None else weights
        _, logp = self._unroll(held, len(symbols), lambda place, _: symbols[:, place])
        ended = symbols == self.symbols.index(END)
        mask = ended.cumsum(1) - ended.long() == 0
        return torch.where(mask, logp, 0.0), mask

    def text(self, symbols: Tensor) -> list[str]:
        """Formulas as text."""
        return ["".join(self.symbols[i] for i in row) for row in symbols.tolist()]

    def learn(self, symbols: Tensor, scores: Tensor, rate: float = 1.0) -> None:
        """Take steps on formulas [N, L] that the policy just wrote and their scores [N]; `rate` is the schedule's."""
        batch = self.batch(symbols, scores)
        self.learn_from(lambda w: self.loss(batch, w), batch, rate)

    def batch(self, symbols: Tensor, scores: Tensor) -> TokenBatch:
        """Formulas as one group of rows with their advantages, under the policy as it is."""
        with torch.no_grad():
            before, mask = self.say(symbols)
            reference, _ = self.say(symbols, self.state["reference"])
        row = scores.double()
        batch = TokenBatch(
            tokens=symbols, attention_mask=mask, action_mask=mask, behaviour_logp=before,
            rewards=torch.zeros_like(before), group=torch.zeros(len(row), dtype=torch.long),
            weights=torch.ones_like(row), scores=row, truncated=torch.zeros(len(row), dtype=torch.bool),
            reference_logp=reference,
        )  # fmt: skip
        return batch.replace(advantages=self.credit(batch))

    def loss(self, batch: TokenBatch, weights: dict[str, Tensor]) -> Tensor:
        """GRPO's loss of these weights."""
        policy = TokenLogProbs(self.say(batch.tokens, weights)[0])
        losses = ClippedSurrogate()(batch, policy) + KLToReference(coefficient=self.kl)(batch, policy)
        return (losses * batch.action_mask).sum(1).mean()

    # The network and the grammar

    def _unroll(
        self, weights: dict[str, Tensor], count: int, choose: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Symbols [N, L] as `choose(place, log-probabilities [N, S])` says, and their log-probabilities."""
        state = torch.zeros(2, count, self.width, dtype=torch.float64)
        last = torch.full((count,), len(self.symbols))
        depth, operand = torch.zeros(count, dtype=torch.long), torch.ones(count, dtype=torch.bool)
        done = torch.zeros(count, dtype=torch.bool)
        symbols, logps = [], []
        for place in range(self.length):
            state = _cell(weights["read"][last] + state[0] @ weights["recur"], state[1])
            allowed = self.allowed(depth, operand, done, self.length - place - 1)
            logp = (state[0] @ weights["head"]).masked_fill(~allowed, -torch.inf).log_softmax(1)
            last = choose(place, logp)
            symbols.append(last)
            logps.append(logp.gather(1, last[:, None])[:, 0])
            kinds = kinds_of(self.symbols)
            depth = depth + kinds["("][last].long() - kinds[")"][last].long()
            operand = kinds["("][last] | kinds["operator"][last]
            done = done | kinds[END][last]
        return torch.stack(symbols, 1), torch.stack(logps, 1)

    def allowed(self, depth: Tensor, operand: Tensor, done: Tensor, room: int) -> Tensor:
        """[N, S] symbols that can come next and still leave a formula within `room` more symbols.

        Args:
            depth: [N] open brackets. operand: [N] whether an operand is due. done: [N] whether the formula has ended.
        """
        kinds = kinds_of(self.symbols)
        due, joined = operand & ~done, ~operand & ~done
        closes = depth + 1  # symbols that are needed after an operand: brackets and the end
        return (
            (due[:, None] & kinds["operand"])
            | ((due & (closes + 2 <= room))[:, None] & kinds["("])
            | ((joined & (closes + 1 <= room))[:, None] & kinds["operator"])
            | ((joined & (depth > 0))[:, None] & kinds[")"])
            | (((joined & (depth == 0)) | done)[:, None] & kinds[END])
        )

    def _examples(self, stream: Stream) -> Tensor:
        """[N, L] weighted sums of some of the primitives."""
        random = stream.split("examples").numpy
        primitives = [s for s in self.symbols if s[:1] == "g"]
        numbers = [s for s in self.symbols if s[:1].isdigit()]
        most = min(len(primitives), self.length // 4)
        if not (most and numbers and {"+", "*"} <= set(self.symbols)):
            return torch.zeros(0, self.length, dtype=torch.long)
        rows = []
        for _ in range(EXAMPLES):
            chosen = random.choice(primitives, size=int(random.integers(1, most + 1)), replace=False)
            words = [w for g in chosen for w in ("+", str(random.choice(numbers)), "*", str(g))][1:]
            rows.append([self.symbols.index(w) for w in (words + [END] * self.length)[: self.length]])
        return torch.tensor(rows)


@cache
def kinds_of(symbols: tuple[str, ...]) -> dict[str, Tensor]:
    """[S] which symbols are of a kind."""
    masks = {k: torch.tensor([s == k for s in symbols]) for k in ("(", ")", END)}
    masks["operator"] = torch.tensor([s in OPERATORS for s in symbols])
    masks["operand"] = torch.tensor([s[:1].isalnum() for s in symbols])
    return masks


def _cell(gates: Tensor, memory: Tensor) -> Tensor:
    """One step of an LSTM: output and memory [2, N, W]."""
    keep, take, show, new = gates.chunk(4, 1)
    memory = (keep + 1).sigmoid() * memory + take.sigmoid() * new.tanh()
    return torch.stack([show.sigmoid() * memory.tanh(), memory])
