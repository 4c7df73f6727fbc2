"""CAPO: curvature-aware policy optimization (arXiv:2510.00819).

Changes GRPO in two places:

1. before every update it is predicted, token by token and in the last layer only, how far the optimizer's step along
   this token's gradient would move objective and policy; tokens outside a trust region are left out, and each
   completion is averaged over the tokens that are kept;
2. advantages are not divided by the group's standard deviation.

With z = W h, pi = softmax(z), v = onehot(y) - pi, the token's gradient is g = A v h'. The optimizer would turn it into
a direction d (g itself for SGD), which moves the logits by lr u, u = d h. To second order in lr

    objective shift   m_H = lr <g, d> + lr^2/2 A [(v.u)^2 - u'F u],     F = diag(pi) - pi pi'
    policy shift      m_F = lr^2/2 (v.u)^2

and a token is kept iff low <= m_H <= high and m_F <= limit. Averaged over the tokens that might have been drawn, m_F
is the second-order KL divergence of the step. `averaged_shifts` gives both for the mean gradient of each completion,
or of the whole batch: the paper's measures of stability.

Dr. CAPO and ReinCAPO: `dr-grpo` and `reinforce` `--with curvature-mask`. The published code (luckeciano/stable-pg-llm)
averages each row of W, in its moments, over the tokens that have it among their candidates; here over all kept tokens.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.batches import Head, TokenBatch, TokenLogProbs, pieces
from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.fields import Fraction, NonNegative, Positive, WholeNumber
from etude.core.method import Method
from etude.core.part import Need
from etude.core.slots import TokenWeights
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import direction, moments

CHUNK_ELEMENTS = 1 << 19
"""Entries of per-token directions held at a time."""


class CurvatureMask(TokenWeights):
    """T_i / kept_i on tokens whose predicted shifts are in the trust region, 0 on the others.

    The factor makes a mean over a completion's tokens a mean over those that are kept. Tokens without advantage have
    no gradient and are kept unseen.

    Exact: the shifts to second order in the learning rate, for a step along one token's gradient in W alone, with
    Adam's direction from the moments that are kept here. Approximate: those moments are of the kept tokens' mean
    gradient in the last layer, without clipping, ratios or weight decay and apart from what tied embeddings add; a
    bias of the head stays where it is, a soft cap of its logits counts as none; with `candidates`, pi is that of the
    likeliest tokens, renormalised.

    Shapes: hidden [B, T, H] -> factors [B, T]. Shifts have no units (rewards count as such). `state` holds the moments
    and the mean policy shift of the last minibatch.

    Args:
        direction: 'adam' keeps first and second moments [V, H]; its first direction is the gradient itself.
        low, high: bounds of the objective shift; None for none.
        limit: largest policy shift; None for none.
        candidates: so many of the likeliest tokens make up pi, the one that was drawn always among them; 0 takes
            all, the paper fewer than 100.
        mean: what a completion's loss is averaged over; 'all' gives factors of 0 and 1, for losses that are sums.
        beta1, beta2, epsilon: of the simulated Adam.

    Raises: ConfigError if low is above high.

    Two equally likely tokens, h = 1, A = 1 and plain gradients: u = v = (1/2, -1/2), so a step of rate 0.2 shifts the
    policy by 0.2^2 / 2 * (1/2)^2 = 0.005 and the objective by 0.2 / 2 + 0.02 (1/4 - 1/4):

    >>> part = CurvatureMask(direction="sgd", low=None, high=None, limit=0.01)
    >>> h, y, a = torch.ones(1, 1), torch.tensor([0]), torch.ones(1)
    >>> [round(x.item(), 4) for x in part.shifts(h, y, a, Head(torch.zeros(2, 1)), 0.2)]
    [0.1, 0.005]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})
    direction: Literal["adam", "sgd"] = "adam"
    low: float | None = -0.01
    high: float | None = 0.01
    limit: NonNegative | None = 1e-4
    candidates: WholeNumber = 16
    mean: Literal["kept", "all"] = "kept"
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Positive = 1e-8

    def check(self) -> None:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"CurvatureMask.low must be at most high, got {self.low} and {self.high}.")

    def objection(self, method: Method) -> str | None:
        if getattr(method, "advantages", None) is None:
            return "predicts how far a token's gradient moves the policy, which needs advantages, and there are none."
        return None

    def initial_state(self) -> dict[str, Any]:
        return {"step": 0}

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert policy.hidden is not None and policy.head is not None and batch.advantages is not None
        active = batch.action_mask & (batch.advantages != 0)
        if not bool(active.any()):
            return torch.ones_like(policy.logp)
        hidden, tokens, advantages = policy.hidden[active], batch.tokens[active], batch.advantages[active]
        objective, moved = self.shifts(hidden, tokens, advantages, policy.head, policy.learning_rate)
        self.state["policy_shift"] = float(moved.mean())
        inside = _within(objective, self.low, self.high) & _within(moved, None, self.limit)
        kept = batch.action_mask.clone()
        kept[active] = inside
        if self.direction == "adam" and bool(inside.any()):
            count = int(kept.sum())
            self._remember(hidden[inside], tokens[inside], advantages[inside] / count, policy.head)
        if self.mean == "all":
            return kept.to(policy.logp.dtype)
        return kept * (batch.action_counts / kept.sum(1).clamp(min=1)).to(policy.logp.dtype)[:, None]

    # What a step along one token's gradient does

    def shifts(
        self, hidden: Tensor, tokens: Tensor, advantages: Tensor, head: Head, rate: float
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Objective and policy shift [N] of every token, for hidden [N, H], tokens and advantages [N]."""
        each = []
        for rows in pieces(len(hidden), self._chunk(head)):
            h, a = hidden[rows], advantages[rows]
            ids, p, v = candidates(head, h, tokens[rows], self.candidates)
            u = self._moves(h, a, ids, v / head.temperature) / head.temperature
            each.append(second_order(p, v, u, a, rate))
        first, second = zip(*each)
        return torch.cat(first), torch.cat(second)

    def _moves(self, hidden: Tensor, advantages: Tensor, ids: Tensor, residual: Tensor) -> Tensor:
        """u = d h [n, K] for the rows of W that belong to the candidates."""
        gradient = advantages[:, None] * residual
        hidden = hidden.to(gradient)
        if self.direction == "sgd" or not self.state["step"]:
            return gradient * (hidden * hidden).sum(1, keepdim=True)
        direct = self.adam(gradient[:, :, None] * hidden[:, None], ids)
        return (direct @ hidden[:, :, None])[..., 0]

    def adam(self, gradient: Tensor, ids: Tensor | None = None) -> Tensor:
        """Adam's next direction for gradients [..., V, H], or [n, K, H] of the rows `ids` [n, K] of W."""
        if self.direction == "sgd" or not self.state["step"]:
            return gradient
        first, second = self._moments(gradient)
        if ids is not None:
            first, second = first[ids], second[ids]
        return direction(gradient, first, second, self.state["step"], self.beta1, self.beta2, self.epsilon)

    def _moments(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return self.state["first"].to(like), self.state["second"].to(like)

    @torch.no_grad()
    def _remember(self, hidden: Tensor, tokens: Tensor, advantages: Tensor, head: Head) -> None:
        """Update the moments with sum_n A_n v_n h_n'."""
        gradient = torch.zeros_like(head.weight, dtype=torch.promote_types(hidden.dtype, torch.float32))
        for rows in pieces(len(hidden), self._chunk(head)):
            ids, _, v = candidates(head, hidden[rows], tokens[rows], self.candidates)
            dense = torch.zeros_like(head.logits(hidden[rows])).scatter_add_(1, ids, v / head.temperature)
            gradient += (dense * advantages[rows, None]).to(gradient).T @ hidden[rows].to(gradient)
        if not self.state["step"]:
            self.state["first"], self.state["second"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        averages = moments(gradient, *self._moments(gradient), self.beta1, self.beta2)
        self.state["first"], self.state["second"] = averages
        self.state["step"] += 1

    def _chunk(self, head: Head) -> int:
        size, width = head.weight.shape
        return CHUNK_ELEMENTS // max(size, (self.candidates or size) * width)


def candidates(head: Head, hidden: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens [n, K], pi over them and onehot(y) - pi; `tokens` [n] takes the last place if not there."""
    z = head.logits(hidden)
    if not 0 < count < z.shape[1]:
        ids = torch.arange(z.shape[1], device=z.device).expand_as(z)
    else:
        ids = z.topk(count, dim=1).indices
        missing = (ids != tokens[:, None]).all(1)
        ids[:, -1] = torch.where(missing, tokens, ids[:, -1])
    p = z.gather(1, ids).softmax(1)
    return ids, p, (ids == tokens[:, None]).to(p) - p


def second_order(p: Tensor, v: Tensor, u: Tensor, advantages: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """m_H and m_F [...] of a step that moves the logits by rate * u, for p, v and u [..., K]; <g, d> = A v.u."""
    slope = (v * u).sum(-1)
    spread = (p * u * u).sum(-1) - (p * u).sum(-1) ** 2
    half = rate**2 / 2
    return rate * advantages * slope + half * advantages * (slope**2 - spread), half * slope**2


@torch.no_grad()
def averaged_shifts(
    part: CurvatureMask, batch: TokenBatch, policy: TokenLogProbs, of: Literal["completion", "batch"] = "batch"
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """m_H and m_F of one step along the mean gradient of each completion [B], or of all tokens [1].

    Means over the tokens of m_H and m_F with u_t = dbar h_t, dbar the optimizer's direction for gbar = mean_t g_t; as
    mean_t A_t v_t.u_t = <gbar, dbar>, the objective shift's first term is again lr <gbar, dbar>. pi is over all tokens.
    """
    assert policy.hidden is not None and policy.head is not None and batch.advantages is not None
    head, shape = policy.head, batch.tokens.shape if of == "completion" else (1, batch.tokens.numel())
    mask = batch.action_mask.view(shape)
    tokens, advantages = batch.tokens.view(shape), batch.advantages.view(shape) * mask
    hidden, averages = policy.hidden.view(*shape, -1), []
    for rows in pieces(shape[0], CHUNK_ELEMENTS // head.weight.numel()):
        h, count = hidden[rows], mask[rows].sum(1).clamp(min=1)
        _, p, v = (x.view(*h.shape[:2], -1) for x in candidates(head, h.flatten(0, 1), tokens[rows].flatten(), 0))
        gradient = (v * advantages[rows, :, None]).mT @ h / count[:, None, None] / head.temperature
        u = h @ part.adam(gradient).mT / head.temperature
        shifts = second_order(p, v, u, advantages[rows], policy.learning_rate)
        averages.append(torch.stack([(x * mask[rows]).sum(1) / count for x in shifts]))
    objective, moved = torch.cat(averages, 1)
    return objective, moved


def _within(values: Tensor, low: float | None, high: float | None) -> Tensor:
    inside = torch.ones_like(values, dtype=torch.bool)
    if low is not None:
        inside &= values >= low
    return inside if high is None else inside & (values <= high)


capo = grpo.replace(
    id="capo",
    title="Stabilizing Policy Gradients for Sample-Efficient Reinforcement Learning in LLM Reasoning",
    paper="arXiv:2510.00819",
    advantages=GroupAdvantage(centre=GroupMean(), scale=None),
    token_weights=(CurvatureMask(),),
    claim=Claim(
        statement="With steps so large and batches so small that GRPO collapses, leaving out the tokens that would "
        "move the policy too far keeps training stable, and is as good as cautious steps with three times the "
        "completions.",
        task="compose",
        setting="chains of two, 8 problems, 48 steps at 1e-3, from tiny; cautious: 96 problems, 12 steps at 2e-4",
        measures=(
            Measure(name="accuracy with large steps", smallest=0.03),
            Measure(name="gain", against=0.0, smallest=0.05, bounds=(-1.0, 1.0)),
            Measure(name="accuracy with a third of the completions", margin=-0.05, smallest=0.05),
            Measure(name="tokens left out", role="mechanism", minimum=0.005, against=0.0, smallest=0.005),
            Measure(name="fall of GRPO", role="mechanism", minimum=0.1, against=0.0, smallest=0.05),
        ),
        equal=("completions",),
        learned_on="accuracy with a third of the completions",
        paper_effect="70 % on MATH with Qwen2.5-Math-7B after about 5 thousand completions instead of 150 thousand",
    ),
)
