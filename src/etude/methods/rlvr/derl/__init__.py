"""DERL: a policy over reward formulas learns, by what they are worth to GRPO, which reward to give (arXiv:2512.13399).

Changes GRPO in its reward. Four primitives of an episode, each in [0, 1] + 1e-6 (g1 right, g2 an answer is there, g3 a
worked chain is there, g4 the right answer occurs somewhere), are combined by an arithmetic formula phi, and

1. an outer policy writes groups of n formulas by constrained decoding (`formulas.py`);
2. the inner policy is trained by GRPO with R_phi for a while, and v(phi) is how often it then succeeds; a formula that
   divides by zero has v = 0;
3. the outer policy takes GRPO's steps on the formulas, A_i = (v_i - mean) / std, KL (k3) 0.001 to its cold start.

    max_psi E_{phi ~ pi_psi}[ v(theta*(phi)) ],   theta*(phi) = argmax_theta E[R_phi]

Within one run this is DERL-pop: the inner policy goes on from formula to formula, `inner` steps each, and v is its
success rate in the last `window` of them, on fresh training problems, whatever the reward says. So v also rises with
time; formulas are in no order within a group, which makes that noise and no bias. DERL proper, each inner run from the
first policy, is `experiments/rlvr/derl.py`, and `FormulaReward(formula=...)` trains with the best formula from scratch
(`--set rewards=formula-reward`).

The released code (sitaocheng/DERL) goes on from the best of a group and scores greedy answers on a held-out set; its
outer policy is a language model of 0.5 B with groups of 8. The paper's KL term of the inner policy is left out, as in
GRPO here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.slots import Context, Reward
from etude.methods.rlvr.derl.formulas import FormulaPolicy
from etude.methods.rlvr.derl.reward import FormulaReward, evaluate, parse
from etude.methods.rlvr.grpo import grpo


class MetaReward(Reward):
    """The value of the formula that is being tried; a policy over formulas learns from what each came to.

    `state` holds the group of formulas [n, L], which of them is being tried since when, its count of successes, the
    scores so far, and `tried`: every formula with its score, in order.

    Args:
        of: what the primitives are; its own formula is not used.
        writer: the policy over formulas.
        size: n, formulas of one outer step.
        inner: training steps with each formula.
        window: the last so many of them, in which successes are counted.

    Raises: ConfigError if `window` is larger than `inner`.

    Shapes: counts solved [B] of every scored batch.

    Formulas are learned from once in `size` times `inner` training steps:

    >>> part = MetaReward(size=4, inner=5)
    >>> part.size * part.inner
    20
    """

    of: FormulaReward = FormulaReward()
    writer: FormulaPolicy = FormulaPolicy()
    size: Count = 4
    inner: Count = 5
    window: Count = 2

    def check(self) -> None:
        if self.window > self.inner:
            raise ConfigError(f"MetaReward.window must be at most inner, {self.inner}; got {self.window}.")
        if self.size < 2:
            raise ConfigError("MetaReward.size must be 2 or more: formulas are compared with each other; got 1.")

    def initial_state(self) -> dict[str, Any]:
        return {"scores": [], "tried": [], "solved": 0, "rows": 0, "failed": False, "begun": 0, "now": 0}

    @property
    def formula(self) -> str:
        """The one that is being tried."""
        place = len(self.state["scores"])
        return self.writer.text(self.state["group"][place : place + 1])[0]

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        self._turn(context)
        values = evaluate(parse(self.formula), self.of.columns(episodes, context))
        if not np.isfinite(values).all():
            self.state["failed"] = True
            return [0.0] * len(episodes)
        scores: list[float] = values.tolist()
        return scores

    def before_update(self, batch: TokenBatch) -> None:
        """Count successes in the last steps of a formula's time."""
        assert batch.solved is not None
        if self.state["now"] - self.state["begun"] >= self.inner - self.window:
            self.state["solved"] += int(batch.solved.sum())
            self.state["rows"] += len(batch)

    def _turn(self, context: Context) -> None:
        """Go on to the next formula if it is time, and learn once a group is complete."""
        state, step = self.state, context.step
        state["now"] = step
        if "group" in state and step - state["begun"] < self.inner:
            return
        if "group" not in state:
            self.writer.begin(context.stream.split("writer"))
        else:
            value = 0.0 if state["failed"] else state["solved"] / max(1, state["rows"])
            state["tried"].append([self.formula, value])
            state["scores"].append(value)
        if len(state["scores"]) == self.size:
            rate = self.writer.learning.optimizer.rate(step, context.steps)
            self.writer.learn(state["group"], torch.tensor(state["scores"], dtype=torch.float64), rate)
            del state["group"]
        if "group" not in state:
            state.update(group=self.writer.write(self.size, context.stream.split("group")), scores=[])
        state.update(begun=step, solved=0, rows=0, failed=False)


derl = grpo.replace(
    id="derl",
    title="Differentiable Evolutionary Reinforcement Learning",
    paper="arXiv:2512.13399",
    rewards=(MetaReward(),),
    claim=Claim(
        statement="A formula that the outer policy found trains better than the outcome alone, the mean of the "
        "primitives, and the best of as many random formulas.",
        task="enumerable",
        setting="enumerable answers",
        measures=(
            Measure(name="success against outcome", smallest=0.1),
            Measure(name="success against average", smallest=0.1),
            Measure(name="success against random search", smallest=0.1),
            Measure(name="formulas that pay", role="mechanism", smallest=0.05),
        ),
        learned_on="success against outcome",
        paper_effect="ALFWorld L0 91.8% and ScienceWorld L0 98.2% with a 1.5B policy.",
    ),
)
