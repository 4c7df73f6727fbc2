"""An RL perspective on RLHF: imitation online, with a discriminator for a reward (arXiv:2310.06147).

The paper reads alignment as reinforcement learning in a world whose transitions are known: the state is the prompt and
the tokens so far, an action one token more, and what is paid is paid at the end (`--task token-mdp` has a language task
as such a world, with resets behind any prefix). Four learners have the same worked answers or pairs of them there:

    cloning              sft: the likelihood of worked answers, on their own prefixes
    online inverse RL    this method
    RLHF                 reward-model, then ppo-rlhf: inverse RL from pairs
    offline RL           a-lol-offline, on a reward and without new samples

A cloned policy that errs with a chance of e a token, and cannot recover, still is right after H of them with (1 - e)^H
(`evaluation/compounding.py` measures both). One that is rewarded on texts of its own learns where it errs. This method
changes PPO-RLHF in three places:

1. beside each problem's completion stands its worked answer (`groups-and-demonstrations`);
2. nobody prefers anything. A discriminator D learns, from all rows of a step, whether a beginning of a text is a
   demonstration's or the policy's. A text is paid -log(1 - D) of the whole (arXiv:1606.03476), and each token what it
   adds to that of the beginning before it,

       r_t = log(1 - D_{t-1}) - log(1 - D_t) - 0.02 (log pi(a_t) - log ref(a_t)),    D_0 = 1/2

   With the best D = p / (p + pi) the gradient is that of -2 JS(p, pi), which is least where pi is the demonstrator p;
3. worked answers are only held against, and the policy learns from what it said (`sampled-answers`).

The discriminator is small and reads what the policy's own states know. On toys, where demonstrations are easy to tell
apart, it is enough; on `checksums`, where a cloned policy errs rarely, it finds few of the errors, and at the rates
that were tried the policy ran ahead of it and was worse for it.

The rest of the paper is shared: a proxy in the place of gold scores that are asked for only to measure (`ppo-rlhf`);
inverse RL of prompts, a proxy r(query, prompt) learned from logged trials by which a prompt is chosen for every query
without asking (Prompt-OIRL, arXiv:2309.06553: `labelled` feedback of `learners/score_heads.py`); and PPO against
learning values of tokens with a replay on one sparse reward: `etude compare ppo planning-q-learning --task checksums`,
or `dqn` on `token-mdp`. The paper has no experiment of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.fields import Count, Positive
from etude.core.learners import Learning
from etude.core.part import Need
from etude.core.slots import Context, TokenReward
from etude.core.streams import Stream
from etude.core.worlds import World
from etude.experience.mixed import GroupsAndDemonstrations
from etude.filters.sampled import SampledAnswers
from etude.learners.small import SmallLearner
from etude.methods.preference.ppo_rlhf import ppo_rlhf
from etude.objectives.scorers import label_loss
from etude.optimizers.adam import AdamW
from etude.optimizers.learner import Weights, learner
from etude.rewards.kl import KLPenalty

if TYPE_CHECKING:
    from etude.core.method import Method


class AdversarialImitation(TokenReward, SmallLearner):
    """-log(1 - D) of whole texts, spread over the tokens by what a discriminator D says of prefixes (arXiv:1606.03476).

        V_t = sum_{s <= t} v(s_s, a_s),    D_t = sigmoid(V_t),    V_0 = 0
        r_t = weight (log(1 - D_{t-1}) - log(1 - D_t)),    sum_t r_t = weight (-log(1 - D_T) - log 2)
        loss = mean over texts of sum_t log(1 + e^-V_t) of demonstrations, log(1 + e^V_t) of the policy's, each a half

    The best V_t is log p(a_1..a_t) - log pi(a_1..a_t), a sum over tokens as it is here. v is a network of one hidden
    layer on the policy's state before a token, its output weights of that token, and their product, of which the sum is
    the logit; each is brought to a mean square of 1. It learns from a step's rows before they are paid. Weights and
    moments are in `state`.

    Paid -log(1 - D) at every token anew, which is above 0, longer texts would be worth more, however they are.

    Args:
        weight: of the reward.
        width: of the hidden layer.
        learning: of the discriminator, `epochs` steps on each batch.

    Shapes: hidden [B, T, H] -> rewards [B, T], 0 outside the action mask.

    >>> prefix_rewards(torch.tensor([[0.0, 2.0]]), torch.tensor([[True, True]]))  # log 2 to log(1 + e^2)
    tensor([[0.0000, 1.4338]])
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # it reads states
    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})
    weight: Positive = 1.0
    width: Count = 64
    learning: Learning = Learning(optimizer=AdamW(lr=3e-3, clip_norm=None), epochs=4, order="before")

    def objection(self, method: Method) -> str | None:
        if not isinstance(method.slots()["experience"], GroupsAndDemonstrations):
            return (
                "tells worked answers from sampled ones, and nothing brings both: set "
                "experience=groups-and-demonstrations."
            )
        return super().objection(method)

    def marked(self, batch: TokenBatch, context: Context) -> TokenBatch:
        """Let the discriminator learn from the worked answers and the sampled ones, before any are paid."""
        features, mask, sampled = state_actions(batch), batch.action_mask.cpu(), batch.sampled.cpu()
        if not self.state:
            self.state.update(fresh(features.shape[-1], self.width, context.stream.split("discriminator")))
        if bool(sampled.any()) and not bool(sampled.all()):
            rate = self.learning.optimizer.rate(context.step, context.steps)
            self.learn_from(lambda w: discriminator_loss(log_odds(features, mask, w), mask, sampled), batch, rate)
        return batch

    def shape(self, batch: TokenBatch) -> Tensor:
        if not self.state:
            return torch.zeros_like(batch.rewards)  # it has seen nothing
        mask = batch.action_mask.cpu()
        odds = log_odds(state_actions(batch), mask, self.state["weights"])
        return self.weight * prefix_rewards(odds, mask).to(batch.rewards)


def prefix_rewards(odds: Tensor, mask: Tensor) -> Tensor:
    """[B, T] by how much -log(1 - D) grows with each token, from log 2; V_t [B, T] are the log-odds of prefixes."""
    worth = softplus(odds)
    before = softplus(pad(odds[:, :-1], (1, 0)))  # 0 before the first token: nothing is said yet
    return (worth - before) * mask


def discriminator_loss(odds: Tensor, mask: Tensor, sampled: Tensor) -> Tensor:
    """Cross-entropy of prefixes with log-odds [B, T]: the mean over texts of a kind of their sums over prefixes.

    Both kinds, demonstrations and sampled [B], count as a half; it is divided by the longest text's prefixes.

    >>> odds, sampled = torch.tensor([[-2.0], [2.0], [2.0]]), torch.tensor([True, False, False])
    >>> round(discriminator_loss(odds, torch.ones(3, 1), sampled).item(), 4)  # log(1 + e^-2)
    0.1269
    """
    each = (label_loss(odds, ~sampled[:, None].expand_as(odds)) * mask).sum(1)
    return (each[sampled].mean() + each[~sampled].mean()) / (2 * mask.sum(1).max())


def log_odds(features: Tensor, mask: Tensor, weights: Weights) -> Tensor:
    """[B, T] V_t, sums of v over a text's tokens with these features [N, 2 H] up to each; `mask` has N of them."""
    each = (features @ weights["in"] + weights["bias"]).relu() @ weights["out"] + weights["offset"]
    return torch.zeros(mask.shape, dtype=each.dtype).masked_scatter(mask, each).cumsum(1)


def state_actions(batch: TokenBatch) -> Tensor:
    """[N, 2 H] of the N action tokens: the state before each, its output weights, and their product."""
    assert batch.hidden is not None and batch.head is not None
    state = _even(batch.hidden[batch.action_mask])
    action = _even(batch.head.weight[batch.tokens[batch.action_mask]])
    return torch.cat([state, state * action], -1)


def fresh(size: int, width: int, stream: Stream) -> dict[str, Any]:
    """A discriminator of features [N, size] that says 1/2 of all."""
    into = torch.randn(size, width, generator=stream.torch, dtype=torch.float64) / size**0.5
    bias, out = torch.zeros(2, width, dtype=torch.float64)
    return learner({"in": into, "bias": bias, "out": out, "offset": out.new_zeros(1)})


def _even(x: Tensor) -> Tensor:
    """Of mean square 1."""
    x = x.detach().cpu().double()
    return x / (x**2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6)


rl_perspective_llm = ppo_rlhf.replace(
    id="rl-perspective-llm",
    title="Reinforcement Learning in the Era of LLMs: What is Essential? What is needed? An RL Perspective on RLHF, "
    "Prompting, and Beyond",
    paper="arXiv:2310.06147",
    row="survey",
    experience=GroupsAndDemonstrations(size=1),
    rewards=(AdversarialImitation(), KLPenalty(coefficient=0.02)),
    filters=(SampledAnswers(),),
    claim=Claim(
        statement="From the same worked answers, and after as many steps from one cloned policy, more strings are "
        "valid by imitation online than by cloning.",
        task="checksums",
        setting="500 worked answers of 8, 16 or 32 symbols; 160 steps of cloning, then 60 steps of 64 problems of "
        "either; 400 new prompts of each length",
        measures=(
            Measure(name="valid at 32", smallest=0.05),
            Measure(name="valid at 16", role="mechanism", smallest=0.05),
            Measure(name="valid at 8", role="mechanism", smallest=0.05),
        ),
        equal=("steps",),
        sweep={"optimizer.lr": (1e-4, 3e-4, 1e-3)},
        learned_on="valid at 32",
        paper_effect="none of its own: it argues that imitation learning is more than cloning, as RLHF is "
        "more than SFT",
    ),
)
