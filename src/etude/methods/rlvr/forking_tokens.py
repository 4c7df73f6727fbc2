"""Forking tokens: learning from the fifth of the tokens at which the policy is undecided (arXiv:2506.01939).

Changes DAPO in one place: the loss of every token is multiplied by 1[H >= tau], where H is the entropy of the current
policy at that token and tau its 80th percentile over all tokens of the minibatch (eq. 5-6):

    loss = -1/(sum_i |y_i|) sum_i sum_t 1[H_it >= tau] min(rho A_i, clip(rho, 1 - 0.2, 1 + 0.28) A_i)

The denominator still counts every token, so the gradient of these tokens is what it was in DAPO and the other tokens
have none. `token_weights.0.complement=true` keeps the lowest 80 % instead, `token_weights.0.threshold` is a fixed tau.

`ForkingGroups` decodes with a temperature of its own at such tokens, the paper's section 4. Entropies over tokens, the
overlap of the undecided positions of two policies and where training changed entropy: `evaluation/tokens.py`.

The published code of TRL calls the share `top_entropy_quantile` and interpolates tau between two entropies, which
keeps the same tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from etude.core.claims import Claim, Measure
from etude.core.fields import Ge, NonNegative
from etude.core.method import Method
from etude.core.slots import Context
from etude.experience.groups import Groups
from etude.methods.rlvr.dapo import dapo
from etude.policies.sampling import Sampling
from etude.token_weights.entropy import HighEntropyTokens


class ForkingGroups(Groups):
    """Groups that are sampled with one temperature at forking tokens and another everywhere else.

    What is sampled from is then no distribution that the policy has at any one temperature, so parts that take its
    log-probabilities for the policy's (importance ratios) are refused; others are trained on it as if the policy itself
    had drawn the tokens.

    Args:
        temperature: where the entropy (at temperature 1) is at most `fork_entropy`; training uses it everywhere.
        fork_temperature: where the entropy is above.
        fork_entropy: in nats; 0.672 was the 80th percentile of the paper's Qwen3-8B.

    >>> ForkingGroups(size=8, fork_temperature=1.2).rows_per_problem, ForkingGroups(fork_temperature=1.2).retempers
    (8, True)
    """

    fork_temperature: Annotated[float, Ge(0.01)] = 1.0
    fork_entropy: NonNegative = 0.672

    def objection(self, method: Method) -> str | None:
        user = method.behaviour_user()
        if self.fork_temperature != self.temperature and user is not None:
            return (
                f"samples at two temperatures ({self.temperature:g}, at forking tokens {self.fork_temperature:g}), and "
                f"{type(user).__name__} takes behaviour_logp for the policy's own log-probabilities, so it would be "
                "biased: set fork_temperature to temperature, or choose a part that does not read them."
            )
        return super().objection(method)

    @property
    def truncates_distribution(self) -> bool:
        return self.retempers or super().truncates_distribution

    @property
    def retempers(self) -> bool:
        """Whether recorded log-probabilities are another distribution's than the policy's at any one temperature."""
        return self.fork_temperature != self.temperature

    def sampling(self, context: Context) -> Sampling:
        plain = super().sampling(context)
        return dataclasses.replace(plain, fork_temperature=self.fork_temperature, fork_entropy=self.fork_entropy)


forking_tokens = dapo.replace(
    id="forking-tokens",
    title="Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM "
    "Reasoning",
    paper="arXiv:2506.01939",
    token_weights=(HighEntropyTokens(share=0.2),),
    claim=Claim(
        statement="The fifth of the tokens with the highest entropy teaches as much as all tokens, and more than the "
        "other four fifths.",
        task="compose",
        setting="chains of three, 32 problems, 15 steps, from tiny",
        measures=(
            Measure(name="accuracy against all tokens", margin=-0.03, smallest=0.03),
            Measure(name="accuracy against the rest", smallest=0.03),
            Measure(name="entropy of the rest", role="mechanism", direction="lower", smallest=0.02, bounds=(0.0, None)),
        ),
        learned_on="accuracy against all tokens",
        paper_effect="against all tokens +11.0 on AIME25 with Qwen3-32B, about equal with 8B; the other four fifths "
        "clearly worse, with collapsing entropy",
    ),
)
