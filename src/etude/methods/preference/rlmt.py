"""RLMT: reinforcement learning with model-rewarded thinking (Language Models that Think, Chat Better,
arXiv:2509.20357).

The policy writes a thought z and then an answer y, and a reward model of preferences is shown prompt and answer alone:

    max E_{(z, y) ~ pi(. | x)} r(x, y) - beta KL(pi || pi_ref)

What is learned is likelihood of both, log pi(z | x) + log pi(y | x, z), with one advantage: no thought is right or
wrong but by the answer that it leads to. This changes GRPO in five places:

1. the reward is `answer-score`: r of what stands behind the delimiter that ends a thought (`sees.delimiter`). A
   completion without one is scored whole; with `sees.strict=true` it is scored as an empty answer;
2. eight completions to each of 64 prompts, sampled at temperature 0.7;
3. tokens weigh alike in the loss, whatever their completion's length;
4. KL to the policy at the start, 0.001 of k3, beside the loss;
5. an entropy bonus of 0.001.

Two more optimizers share the reward:

    rlmt-ppo    one completion to a prompt, gamma = lambda = 1, a critic of its own whose step is clipped at 0.5, no KL
    rlmt-dpo    of eight completions the best as chosen, the worst as rejected; beta = 0.1, two passes

The control arm, plain RLHF, is any of them from a start that does not think: then there is no delimiter, and all is as
with `reward-model`. Starts are runs of their own: fine-tuning on completions with thoughts (`etude train sft`), or a
base model that the prompt asks for the format (`--task data.jsonl` with `task.system`).

Published rates, for models of 8B: 1e-6 for the policy, 1e-5 for PPO's critic and 3e-7 for DPO; here they are the usual
ones for the size (`optimizer.lr`, `critic.learning.optimizer.lr`). The paper samples DPO's completions once, from the
start; here each step samples its own. It stops after about one epoch of two, because later on the reward is
over-optimised. How often PPO passes over a batch is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from etude.advantages.returns import GAE
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode, Segment
from etude.core.learners import Learning
from etude.core.slots import Context
from etude.core.task import LanguageTask, Task
from etude.experience.groups import Groups
from etude.learners.value_model import ValueModel
from etude.methods.foundation.ppo import ppo
from etude.methods.rlvr.grpo import grpo
from etude.objectives.preference import DPO
from etude.optimizers.adam import AdamW
from etude.references.frozen import Frozen
from etude.regularizers.entropy import EntropyBonus
from etude.regularizers.kl import KLToReference
from etude.rewards.judged import AfterThinking, View
from etude.rewards.model import RewardModel


class AnswerScore(RewardModel):
    """weight * v(x, y): a reward model's value of what is shown of a completion, by default its answer without thought.

    A completion that is shown whole is scored in the tokens that were sampled, as by `reward-model`. Of another one
    what is shown is encoded again, for the scorer's eyes only, and ends as the completion did. Where nothing is shown
    it is scored as an empty answer.

    Args:
        sees: what of a completion the model is shown.

    Raises: ConfigError if `model` holds no reward model.

    >>> from etude.core.episodes import Problem
    >>> said = Episode(Problem("p/1", "?"), [Segment("assistant", "so</think>6")])
    >>> [part.answer(said, None) for part in (AnswerScore(), AnswerScore(sees=AfterThinking(strict=True)))]
    ['6', '6']
    >>> bare = Episode(Problem("p/1", "?"), [Segment("assistant", "6")])
    >>> [part.answer(bare, None) for part in (AnswerScore(), AnswerScore(sees=AfterThinking(strict=True)))]
    ['6', '']
    """

    sees: View = AfterThinking()

    def lacks(self, task: Task) -> str | None:
        if isinstance(task, LanguageTask) and task.max_turns > 1:
            return (
                f"answer-score is shown the answer of one completion, and {task.id} has up to {task.max_turns} turns: "
                "take reward-model, which is shown all of them."
            )
        return super().lacks(task)

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return super().score([self.shown(episode, context) for episode in episodes], context)

    def answer(self, episode: Episode, context: Context) -> str:
        """What the model is shown of a completion; '' where it is shown nothing."""
        case = self.sees.case(episode, context)
        return "" if case is None else case.given

    def shown(self, episode: Episode, context: Context) -> Episode:
        """The episode with what is shown as its completion; the same one where that is all of it."""
        if (answer := self.answer(episode, context)) == episode.completion.strip() and answer:
            return episode
        begin = next(i for i, s in enumerate(episode.segments) if s.role == "assistant")
        said = episode.segments[begin].tokens
        end = said[-1:] if said and said[-1] in context.policy.end_ids else []
        tokens = context.policy.encode(answer) + end or [context.policy.tokenizer.eos_token_id]
        kept = Segment("assistant", answer, tokens, [1] * len(tokens), [0.0] * len(tokens))
        return replace(episode, segments=[*episode.segments[:begin], kept])


rlmt = grpo.replace(
    id="rlmt",
    title="Language Models that Think, Chat Better",
    paper="arXiv:2509.20357",
    experience=Groups(size=8, temperature=0.7),
    rewards=(AnswerScore(),),
    aggregation="token-mean",
    regularizers=(KLToReference(coefficient=0.001), EntropyBonus(coefficient=0.001)),
    reference=Frozen(),
    problems=64,
    claim=Claim(
        statement="By the same reward model of answers, in as many steps and about as many sampled tokens, a policy "
        "that thinks before it answers ends with a higher true reward than one that does not, by GRPO, PPO and DPO "
        "alike.",
        task="sorting",
        setting="4,000 pairs of answers, a tenth turned; one layer of width 96 after 600 supervised steps with or "
        "without thoughts before the same answers; 100 steps of 32 x 8 completions, of 71 x 8 without thoughts, which "
        "are 20 and 9 tokens long",
        measures=(
            Measure(name="worth by GRPO", smallest=0.02, bounds=(0.0, 1.0)),
            Measure(name="worth by PPO", smallest=0.02, bounds=(0.0, 1.0)),
            Measure(name="worth by DPO", smallest=0.02, bounds=(0.0, 1.0)),
            Measure(name="in order, by GRPO", role="mechanism", smallest=0.02, bounds=(0.0, 1.0)),
            Measure(name="tokens, by GRPO", role="mechanism", direction="equal", smallest=20_000.0, bounds=(0.0, None)),
        ),
        equal=("steps",),
        sweep={"optimizer.lr": (3e-4, 1e-3)},
        learned_on="worth by GRPO",
        paper_effect="3 to 7 points on AlpacaEval2, WildBench and ArenaHardV2 and 1 to 3 on creative writing and "
        "knowledge, over 40 runs of models of 7B and 8B; GRPO is the best of the three",
    ),
)

rlmt_ppo = ppo.replace(
    id="rlmt-ppo",
    title=rlmt.title,
    paper=rlmt.paper,
    experience=Groups(size=1, temperature=0.7),
    rewards=(AnswerScore(),),
    advantages=GAE(gamma=1.0, lam=1.0, standardize=True),
    critic=ValueModel(learning=Learning(optimizer=AdamW(), epochs=2, minibatches=2), clip=0.5),
    problems=64,
)

rlmt_dpo = grpo.replace(
    id="rlmt-dpo",
    title=rlmt.title,
    paper=rlmt.paper,
    experience=Groups(size=8, temperature=0.7),
    rewards=(AnswerScore(),),
    advantages=None,
    objective=DPO(beta=0.1),
    reference=Frozen(),
    problems=64,
    epochs=2,
)
