"""RLP: to think before the next word of a text is rewarded by how much better it is foreseen (arXiv:2510.01265).

What is learned from is text, without questions that can be checked: (context, what comes next) pairs of it. One
network is both who thinks and who foresees; a slow average of it, phi, foresees without a thought. Changes GRPO in four
places:

1. a completion is a thought c between the context and what comes next; the opening of the thought is said for the
   policy (`Thoughts`). G = 16, at temperature 0.7;
2. its reward is what it tells about the text x that comes next, by teacher forcing and without a gradient:

       r = log p_theta(x | context, c) - log p_phi(x | context)    (`InformationGain`);

3. advantages are G / (G - 1) (r - mean r), without a standard deviation: r against the mean of the others. What phi
   says is the same for all thoughts at one context, so it cancels there; it says how much thinking gains, not what is
   learned;
4. phi <- tau phi + (1 - tau) theta after every step, tau = 0.999, from theta as it is at the first.

The surrogate is GRPO's, on the tokens of thoughts alone, each thought averaged; no likelihood of the text is learned
beside it, and nothing holds the policy back. The paper does not state the clip's bounds; here 0.2 and 0.2.

Identities: E over x of r is the cross-entropy of phi less that of theta with the thought; E over c of log p(x | c) is
at most log E over c of p(x | c). What comes next is the problem's `answer`, its prompt the context; tasks say how a
thought begins and ends (`thought`). What becomes of thoughts that do not end is not said; here they are ended for the
policy. No code is public.

The paper's controls are continued pretraining with as many texts, and with as much compute (both in the claim), and
RPT's binary reward, 1 where the likeliest next token after the thought is the text's:

    etude train rlp --task streams --set rewards=greedy-prediction
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etude.advantages.group import GroupAdvantage, LeaveOneOut
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode
from etude.core.errors import DataError
from etude.core.slots import Context, Reward
from etude.experience.thoughts import THOUGHT, Thoughts
from etude.methods.rlvr.grpo import grpo
from etude.policies.texts.likelihood import likeliest, logp
from etude.policies.texts.models import CurrentPolicy, KeptReference, Model
from etude.references.frozen import MovingAverage

if TYPE_CHECKING:
    from torch import Tensor

    from etude.core.method import Method
    from etude.policies.language import LanguagePolicy


class ForetellingReward(Reward, abstract=True):
    """What a thought is worth for foretelling x, the problem's answer as text, by the policy as it is at temperature 1.

    It does not apply to a thought after which the model's window has no room for x.

    Raises: DataError for a problem whose answer is no text, or an empty one.
    """

    def worth(
        self, contexts: Sequence[list[int]], thoughts: Sequence[list[int]], texts: Sequence[list[int]],
        policy: LanguagePolicy,
    ) -> Tensor:  # fmt: skip
        """[N] what N thoughts are worth, in these contexts and before these texts, all as token ids."""
        raise NotImplementedError

    def objection(self, method: Method) -> str | None:
        if not isinstance(method.slots().get("experience"), Thoughts):
            return "scores what thoughts inside of a text tell about what comes next: set experience=thoughts."
        if method.slots().get("second_look") is not None:
            return "scores thoughts, and what a second look puts in is none: leave out second_look."
        return None

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float | None]:
        asked = [(_context(e), _thought(e), context.policy.encode(_next(e))) for e in episodes]
        room = [sum(map(len, parts)) <= context.policy.context for parts in asked]
        if not any(room):
            return [None] * len(episodes)
        contexts, thoughts, texts = zip(*(parts for parts, fits in zip(asked, room) if fits))
        found = iter(self.worth(contexts, thoughts, texts, context.policy).tolist())
        return [next(found) if fits else None for fits in room]


class InformationGain(ForetellingReward):
    """log p(x | context, thought) - log p_phi(x | context): what a thought tells about what comes next, in nats.

    Shapes: N thoughts -> [N].

    Args:
        baseline: phi, which foresees without a thought. It is the same for all thoughts at a context.

    A thought after which x has probability 0.8, and of 0.2 without it, tells ln 4:

    >>> import math
    >>> round(math.log(0.8) - math.log(0.2), 4)
    1.3863
    """

    baseline: Model = KeptReference()

    def worth(
        self, contexts: Sequence[list[int]], thoughts: Sequence[list[int]], texts: Sequence[list[int]],
        policy: LanguagePolicy,
    ) -> Tensor:  # fmt: skip
        return information_gain(contexts, thoughts, texts, policy, self.baseline)


class GreedyPrediction(ForetellingReward):
    """1 where x is what the policy would say after the thought at temperature 0, else 0: RPT's binary reward.

    A thought that makes x likelier and not yet the likeliest is worth nothing, and where no thought of a context does
    there is nothing to learn from: that is what `information-gain` is compared with. Shapes: N thoughts -> [N].

    Of two words with chances of 0.3 and 0.7 the second is said:

    >>> import torch
    >>> chances = torch.tensor([0.3, 0.7])
    >>> [float(chances.argmax() == word) for word in range(2)]
    [0.0, 1.0]
    """

    def worth(
        self, contexts: Sequence[list[int]], thoughts: Sequence[list[int]], texts: Sequence[list[int]],
        policy: LanguagePolicy,
    ) -> Tensor:  # fmt: skip
        return likeliest([[*c, *t] for c, t in zip(contexts, thoughts)], texts, policy).double()


def information_gain(
    contexts: Sequence[Sequence[int]], thoughts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]],
    policy: LanguagePolicy, baseline: Model,
) -> Tensor:  # fmt: skip
    """[N] log p(text | context, thought) under the policy less log p(text | context) under the baseline, in nats.

    Args:
        contexts, thoughts, texts: N of each, as token ids; a thought may be empty.
    """
    thought = logp(CurrentPolicy(), [[*c, *t] for c, t in zip(contexts, thoughts)], texts, policy)
    return (thought.double() - logp(baseline, contexts, texts, policy).double()).sum(1)


def _thought(episode: Episode) -> list[int]:
    """The tokens of the thought. Raises DataError for an episode without one."""
    if THOUGHT not in episode.info:
        raise DataError(f"What was said of problem {episode.problem.id!r} is no thought: set experience=thoughts.")
    found: list[int] = episode.info[THOUGHT]
    return found


def _context(episode: Episode) -> list[int]:
    """The tokens before the turn that the thought begins."""
    turn = episode.turns[0]
    return [t for s in episode.segments[: episode.segments.index(turn)] for t in s.tokens]


def _next(episode: Episode) -> str:
    """What comes next."""
    answer = episode.problem.answer
    if not isinstance(answer, str) or not answer:
        raise DataError(
            f"Problem {episode.problem.id!r} has {answer!r} where the text should be that comes next: the answer of a "
            "problem to think about must be text."
        )
    return answer


rlp = grpo.replace(
    id="rlp",
    title="RLP: Reinforcement as a Pretraining Objective",
    paper="arXiv:2510.01265",
    experience=Thoughts(size=16, temperature=0.7),
    rewards=(InformationGain(),),
    advantages=GroupAdvantage(centre=LeaveOneOut(), scale=None),
    reference=MovingAverage(rate=0.001),
    claim=Claim(
        statement="What comes next is foreseen better after thoughts that were rewarded for it than by going on with "
        "pretraining, on the same texts or at the same cost.",
        task="streams",
        setting="Assignments modulo 10 without their values, after 400 steps on such text, half of it with a "
        "thought; 60 steps of 16 texts, with 8 thoughts at each or without any, then 20 steps of GRPO. Of an arm with "
        "and without thoughts the better log-likelihood counts",
        measures=(
            Measure(name="log-likelihood at equal tokens", smallest=0.05, bounds=(None, 0.0)),
            Measure(name="log-likelihood at equal compute", smallest=0.05, bounds=(None, 0.0)),
            Measure(name="accuracy after GRPO at equal tokens", role="mechanism"),
            Measure(name="accuracy after GRPO at equal compute", role="mechanism"),
            Measure(name="log-likelihood against the start", role="mechanism", smallest=0.05, bounds=(None, 0.0)),
            Measure(name="information gain against the start", role="mechanism", smallest=0.05, bounds=(None, None)),
        ),
        equal=("texts",),
        learned_on="log-likelihood at equal tokens",
        paper_effect="Qwen3-1.7B: mean of 36.0% against 30.9% of continued pretraining and 30.3% of the base; after "
        "SFT and RLVR 42.5%, 39.9%, 39.3%; Nemotron-Nano-12B from 42.8% to 61.3%",
    ),
)
