"""Inverse RL for language models, a survey: one reward model, whatever it is learned from (arXiv:2507.13158).

Generation is a decision process whose transitions are known (the prompt and the tokens so far, then one token more) and
whose reward is not: alignment recovers a reward from data, and optimises it. Here a reward model is a folder with a
value head, whatever taught it, and `ppo-rlhf`, `grpo` with `rewards=reward-model` and a search with
`guide=paid,guide.reward=reward-model` take any of them. What it is learned from is one setting of this method each:

    pairs, Bradley-Terry        objective=bradley-terry (the method `reward-model`)
    pairs, order classifier     this method
    rankings, Plackett-Luce     objective=plackett-luce experience=scored-answers
    demonstrations, imitated    the method `sft`, and log pi / ref as the reward
    demonstrations, adversarial experience=demonstrations-and-samples experience.whose.model=RUN
    ratings, regression         objective=ratings experience=scored-answers
    a rule                      nothing to learn: rewards=task-reward, or a function
    prompts that elicit         `learners/score_heads.py`: `Worked` on states of (question, prompt), `ScoreHeads.best`

This method changes the reward model in one place, its loss: answers are classified, each for itself,

    loss = -log sigmoid(v(x, y_w)) - log sigmoid(-v(x, y_l)), a mean over both,

so that what is learned is which answers tend to be chosen. Its order is that of what answers are worth, and order is
all that best-of-N asks for. On demonstrations and samples of the first policy the same loss has its optimum at
v = log p_demonstrations - log p_policy; an optimiser that pays 1 per nat of distance from that policy then arrives at
the demonstrator's distribution.

What the survey asks of a reward model besides is shared: heads on frozen states for studies of seconds
(`learners/score_heads.py`), pairs to ask about at random, by disagreement or D-optimal (`learners/queries.py`), a score
spread over tokens by attention (`rewards=attention-credit`), and pair accuracy, best-of-N curves, the gap between proxy
and gold with its two laws (`evaluation/reward_models.py`). Prompts are chosen among states of (question, prompt) that
the caller brings: nothing here makes them of a task's questions and candidates for prompts, or asks a model with the
prompt that was found best. The survey has no experiment of its own.
"""

from etude.core.claims import Claim, Measure
from etude.methods.preference.reward_model import reward_model
from etude.objectives.scorers import OrderClassifier

GOLD = (-6.75, 17.3)
"""What answers of `digest` can be worth."""

irl_llm_survey = reward_model.replace(
    id="irl-llm-survey",
    title="Inverse Reinforcement Learning Meets Large Language Model Post-Training: Basics, Advances, and "
    "Opportunities",
    paper="arXiv:2507.13158",
    row="survey",
    objective=OrderClassifier(),
    claim=Claim(
        statement="With three of ten labels wrong an order classifier chooses answers that are not worth less than "
        "those of Bradley and Terry's model; demonstrations alone make a reward by which better answers are chosen "
        "than were sampled; and D-optimal pairs teach more than as many at random.",
        task="digest",
        setting="answers by the writer, frozen states of a model fine-tuned on them, ten heads of two layers of 64; "
        "2,000 pairs, 1,000 demonstrations (the best of four answers), the best of 32 to 150 prompts; 60 labels, and "
        "60 more in each of three rounds",
        measures=(
            Measure(name="gold, 30 % wrong", margin=-0.3, smallest=0.3, bounds=GOLD),
            Measure(name="gold from demonstrations", smallest=0.3, bounds=GOLD),
            Measure(name="accuracy, D-optimal pairs", smallest=0.01),
            Measure(name="gold, no label wrong", role="mechanism", direction="equal", smallest=0.3, bounds=GOLD),
            Measure(name="accuracy, disagreed pairs", role="mechanism", smallest=0.01),
            Measure(name="gap, best of 64", role="mechanism", smallest=0.05, bounds=(None, None)),
        ),
        equal=("labels",),
        sweep={},
        learned_on="gold, 30 % wrong",
        paper_effect="none of its own: a survey; in arXiv:2411.04991 classifiers are as good as Bradley and Terry's "
        "model, and better with many wrong labels",
    ),
)
