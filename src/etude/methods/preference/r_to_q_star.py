"""From r to Q*: what DPO trains is a Q-function of tokens (arXiv:2404.12358).

Changes DPO in nothing that is minimised. It is DPO's margin loss read token by token: with beta log ref folded into the
reward, the logits of a policy that is optimal for a reward r with a KL penalty are Q*, and

    beta log pi*/ref (a_t | s_t) = r(s_t, a_t) + V*(s_{t+1}) - V*(s_t),

a reward that V* has shaped; over a pair with one prompt V*(s_0) cancels, so DPO's loss is inverse Q-learning. From this
follow, each with what shows it:

1. every token has a credit, its log-ratio: `etude evaluate RUN --credit start` looks whether the lowest one of a spoilt
   answer is where it was spoilt;
2. a search by reward and value is a search by likelihood: `etude evaluate RUN --search token-beam:5`, `per_token=true`
   for the mean instead of the sum;
3. E_ref[beta log pi/ref] = -beta KL(ref || pi) <= 0: of what the reference says the implicit reward can only fall. So
   with a reference that was fine-tuned on the chosen answers (the first run of this recipe) even their reward falls
   below 0 while they are learned, which is no fault: DPO logs `chosen_reward` and `rejected_reward`.

Exact soft values of token trees are in `evaluation/soft_values.py`. The paper's own search is of width 5 on TL;DR, with
beta = 0.1, which is kept here; wide beams become verbose there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etude.core.claims import Claim, Measure
from etude.core.episodes import Problem
from etude.core.errors import DataError
from etude.core.recipe import Recipe
from etude.stages.chain import Derive, Train

if TYPE_CHECKING:
    from etude.core.task import LanguageTask


class ChosenAnswers(Derive):
    """The better answer of every pair, `info['chosen']`, as a worked one.

    Raises: DataError for a problem without a pair.

    >>> pair = Problem("p/1", "1+1=", info={"chosen": "2", "rejected": "3"})
    >>> ChosenAnswers(called="chosen").rows([pair], None, 0)
    [{'prompt': '1+1=', 'completion': '2'}]
    """

    def rows(self, problems: Sequence[Problem], task: LanguageTask, seed: int) -> list[dict[str, Any]]:
        return [{"prompt": problem.prompt, "completion": chosen(problem)} for problem in problems]


def chosen(problem: Problem) -> str:
    """The better answer of its pair. Raises DataError if it has none."""
    if isinstance(text := problem.info.get("chosen"), str):
        return text
    raise DataError(
        f"Problem {problem.id!r} has no chosen answer: give data files the columns 'chosen' and 'rejected', or choose "
        "a task that has pairs, like 'digest'."
    )


r_to_q_star = Recipe(
    id="r-to-q-star",
    title="From r to Q*: Your Language Model is Secretly a Q-Function",
    paper="arXiv:2404.12358",
    row="theory",
    runs=(
        ChosenAnswers(called="chosen", problems=4000),
        Train(called="sft", method="sft", steps=100, task="{chosen}"),
        Train(called="dpo", method="dpo", steps=60),
    ),
    claim=Claim(
        statement="The token of a spoilt answer with the lowest log-ratio is the wrong one more often than "
        "by chance, a beam of five likeliest beginnings finds better answers than the greedy one, and after "
        "fine-tuning on the chosen answers DPO lowers even their implicit reward.",
        task="digest",
        setting="two of ten words of the writer are any of the 48; two layers of width 64 after 1,000 supervised "
        "steps; 100 steps on the chosen answers, 60 of DPO; 500 spoilt answers, 300 searches; trees of 3 x 3 tokens",
        measures=(
            Measure(name="hit", margin=0.05, smallest=0.05),
            Measure(name="gold, beam of 5", smallest=0.2, bounds=(-6.75, 17.3)),
            Measure(name="chosen reward", direction="lower", against=0.0, smallest=0.02, bounds=(None, None)),
            Measure(name="chosen reward, other reference", role="mechanism", direction="lower", smallest=0.02,
                    bounds=(None, None)),
            Measure(name="gold, beam of 20", role="mechanism", smallest=0.2, bounds=(-6.75, 17.3)),
            Measure(name="words, beam of 20", role="mechanism", smallest=0.2, bounds=(0.0, None)),
            Measure(name="error of credit on trees", role="mechanism", direction="lower", against=0.01, smallest=0.001,
                    bounds=(0.0, None)),
        ),
        sweep={},
        learned_on="gold, beam of 5",
        paper_effect="beam search of 5 wins 10 to 15 % more often than the DPO policy on TL;DR; credit shown on "
        "examples; the chosen reward falls after fine-tuning on the chosen answers",
    ),
)  # fmt: skip
