"""RLPrompt: a discrete prompt for a frozen model, found by soft Q-learning over its tokens (arXiv:2205.12548).

The policy writes a prompt z_1 ... z_T, a frozen model of the task reads it, and what that says is worth r. Its logits
are values Q of tokens; V = log sum exp Q, A_t = Q(s_t, z_t) - V(s_t) = log pi(z_t | s_t), and V' is V of a slow copy:

1. no ratio and no baseline: two squared errors of which the loss is the mean (arXiv:2106.07704), summed over tokens,

       (A_t - (r_t + V'_{t+1} - V'_t))^2,    (sum_{l>=t} A_l - (r - V'_t))^2,    V'_{T+1} = 0,

   with r = r_T paid at the end (`soft-targets`, `soft-q-consistency`). Where Q solves the soft Bellman equations both
   vanish, and pi(z) = exp r(z) / sum_z' exp r(z'). They say nothing of the level of Q: A stays what it is where all of
   a text's logits rise. `objective=symmetric-soft-q` adds both with the roles of policy and copy exchanged, c times the
   former and 1 - c times the latter, and so learns the level, too; the release has them, and its runs leave them out;
2. the slow copy goes 0.001 of the way after each step (`reference`);
3. rewards are standardised over the 16 prompts that are tried on the same input in a step, by (r - mean) /
   (std + 1e-4), and multiplied by 5, so that neither the input's difficulty nor the scale of r matters;
4. prompts are drawn from the 256 likeliest tokens.

Each step tries 16 prompts on one input: for classification a batch of examples, on which a prompt is worth the mean of
200 gap where the label is likelier than all others by gap, and 180 gap where it is less likely (`cue_prompts.py`).

    etude train rlprompt --task cue-prompts --set task.reader=RUN --model blank:2x64x4@cues

The paper trains one layer of 2,048 units before the head of a frozen language model, from a start at which all tokens
are about as good, at a rate of 5e-5 for 12,000 steps. Here all of the policy is trained, and a blank model starts so.
The release (mingkaid/rl-prompt) sums over tokens and averages over rows; `fixed-length` divides by T besides.

Classification by two labels is what is here. The paper also has tasks of more labels, and prompts for generation
(style transfer): a prompt is worth the best of 32 texts that the model writes behind it, by the sum of style and
content, as a mean over 4 bootstraps; each input is repeated 4 times in a step, and rewards are shaped to [-20, 80].
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.advantages.returns import gae, rewards_to_go
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import Probability
from etude.core.kinds import TokenMethod
from etude.core.method import Method
from etude.core.part import Need
from etude.core.slots import TokenAdvantages, TokenObjective
from etude.core.worlds import World
from etude.curricula.uniform import Uniform
from etude.experience.groups import Groups
from etude.optimizers.adam import AdamW
from etude.references.frozen import MovingAverage
from etude.rewards.control import AffineScores, PromptZScores
from etude.rewards.outcome import TaskReward


class SoftTargets(TokenAdvantages):
    """r_t + V'(s_{t+1}) - V'(s_t): what log pi(z_t | s_t) is where the reference's logits solve the soft equations.

    V' = log sum exp of the reference's logits, 0 behind the last token. From any token on they add up to what is paid
    from there on, less V' there.

    Shapes: rewards, reference_values [B, T] -> [B, T], 0 outside the action mask.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(rewards=torch.tensor([[0.0, 4.0]]), reference_values=torch.tensor([[1.0, 2.5]]))
    >>> rows.action_mask = torch.tensor([[True, True]])
    >>> SoftTargets()(rows).tolist()
    [[1.5, 1.5]]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_VALUES})

    def objection(self, method: Method) -> str | None:
        temperature = method.slots()["experience"].temperature
        if temperature != 1:
            return (
                "reads logits as values, whose log sum exp belongs to chances at temperature 1, and completions are "
                f"sampled at {temperature:g}: set experience.temperature=1."
            )
        return None

    def __call__(self, batch: TokenBatch) -> Tensor:
        assert batch.reference_values is not None
        return gae(batch.rewards, batch.reference_values, batch.action_mask, 1.0, 0.0)


class SoftQConsistency(TokenObjective):
    """Half of (A_t - a_t)^2 + (sum_{l>=t} A_l - sum_{l>=t} a_l)^2, A_t = log pi(z_t | s_t), a_t the advantages.

    With `soft-targets` for advantages the first is soft Q-learning by single steps, the second path consistency.
    Nothing in it asks who sampled.

    Shapes: logp, advantages [B, T] -> [B, T].

    Of two tokens, off by 1 and by 2:

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[-1.0, -1.0]]), action_mask=torch.tensor([[True, True]]))
    >>> SoftQConsistency()(rows, TokenLogProbs(torch.tensor([[-2.0, -3.0]]))).tolist()
    [[5.0, 4.0]]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    fresh_rows: ClassVar[bool] = False  # its equations hold for every text

    def objection(self, method: Method) -> str | None:
        if not isinstance(method.slots()["advantages"], SoftTargets):
            return "regresses log-probabilities to soft values' targets: set advantages=soft-targets."
        return None

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        return _consistency(policy.logp - batch.advantages, batch.action_mask)


class SymmetricSoftQ(SoftQConsistency):
    """c times `soft-q-consistency` and 1 - c times the same with the roles of policy and reference exchanged.

    The latter regresses nothing of the policy's chances: the reference's log-probabilities A' stand still, and the
    policy's values V, in r_t + V_{t+1} - V_t, move towards them.

    Args:
        weight: c; at 1 it is `soft-q-consistency`.

    Shapes: logp, reference_logp, rewards, advantages [B, T], logits [B, T, V] -> [B, T].

    One token of two that are alike to the policy, of which the reference chooses this one with chance 1/4, paid 0:

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> zero, on = torch.zeros(1, 1), torch.ones(1, 1).bool()
    >>> rows = Rows(advantages=zero, rewards=zero, reference_logp=torch.tensor([[0.25]]).log(), action_mask=on)
    >>> said = TokenLogProbs(torch.tensor([[0.5]]).log(), logits=torch.zeros(1, 1, 2))
    >>> [round(SymmetricSoftQ(weight=c)(rows, said).item(), 4) for c in (1.0, 0.0)]
    [0.4805, 0.4805]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS, Need.REFERENCE_LOGP})
    weight: Probability = 0.5

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert policy.logits is not None and batch.reference_logp is not None
        values = policy.logits.logsumexp(-1)
        target = gae(batch.rewards, values, batch.action_mask, 1.0, 0.0)
        exchanged = _consistency(batch.reference_logp - target, batch.action_mask)
        return self.weight * super().__call__(batch, policy) + (1 - self.weight) * exchanged


def _consistency(error: Tensor, mask: Tensor) -> Tensor:
    """[B, T] the mean of the squares of errors [B, T] and of what they add up to from each token on."""
    ahead = rewards_to_go(error * mask, mask, 1.0)
    return (error**2 + ahead**2) / 2


rlprompt = TokenMethod(
    id="rlprompt",
    title="RLPrompt: Optimizing Discrete Text Prompts with Reinforcement Learning",
    paper="arXiv:2205.12548",
    curriculum=Uniform(),
    experience=Groups(size=16, top_k=256),
    rewards=(TaskReward(), PromptZScores(epsilon=1e-4), AffineScores(scale=5.0)),
    advantages=SoftTargets(),
    objective=SoftQConsistency(),
    aggregation="fixed-length",
    reference=MovingAverage(rate=1e-3),
    optimizer=AdamW(),
    problems=1,
    claim=Claim(
        statement="Prompts of two tokens that soft Q-learning finds are nearly as good as the best of all 4,096, "
        "better than none, and better than those that it finds without standardised rewards.",
        task="cue-prompts",
        setting="a reader of two layers of width 64 after 1,500 supervised steps on reviews; 16 reviews of each label; "
        "150 steps of 16 prompts from a blank policy of the same size; the greedy prompt on 400 reviews of the test, "
        "each label's chance against the other's",
        measures=(
            Measure(name="accuracy against the optimum", margin=-0.02, smallest=0.02),
            Measure(name="accuracy against no prompt", smallest=0.05),
            Measure(name="accuracy against raw rewards", smallest=0.02),
            Measure(name="accuracy against random search", role="mechanism", smallest=0.02),
            Measure(name="accuracy, second reader, against no prompt", role="mechanism", smallest=0.05),
        ),
        sweep={},
        learned_on="accuracy against raw rewards",
        paper_effect="a mean accuracy of 75.8 over seven few-shot data sets (92.5 on SST-2), above fine-tuning and "
        "other prompts",
    ),
)  # fmt: skip
