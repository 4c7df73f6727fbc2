"""A survey of reinforcement learning from human feedback, as methods: a learned reward beside SAC, and beside PPO.

The survey (arXiv:2312.14925) goes through what such systems are made of: feedback and its likelihood, who gives it,
which queries are chosen, how rewards are learned and how policies are. Each is a part here, of `rlhf-survey`, which
changes SAC in three places, and of `rlhf-survey-ppo`, which changes PPO in two:

1. nobody who learns sees rewards. Three models do as well, `replay-preferences` or `rollout-preferences`, that learn
   which of two segments of 25 steps is better from 300 answers of a teacher,

       P(first) = (1 - slips) sigmoid(sum_t r(first_t) - sum_t r(second_t)) + slips / 2

   `feedback` may be another: a best one, a ranking, a rating, a critique, a correction, a demonstration, a stop, all of
   them choices from a set; `teacher.*` are the errors of B-Pref; `queries` chooses what is asked;
2. the reward of a step is the mean of the models. In SAC that is asked whenever a row is learned from
   (`critic.backup=relabelled-bootstrap`), so all that is stored is relabelled each time that the models have learned;
   in PPO a rollout is paid once, each model on a scale of its own (`model-rewards`);
3. SAC acts, asks and learns by turns: every 250 updates there is a session, of 40 questions at first and then fewer.
   PEBBLE (arXiv:2106.05091) begins without any, paid by how new states are: `critic.backup.payment=state-entropy`.

Direct methods, without a model: `dpo` for tokens, `ipl` for logs. Rewards are held against each other by the EPIC
distance in `evaluation/epic.py`, which no change that leaves all policies their order alters.

The survey has no method of its own. It brings what each model says to mean 0 and one deviation; that is so in PPO, and
in SAC models are bounded instead, by tanh, as in PEBBLE, and their mean stays where it is. Segments that a termination
cut are compared as they are, without steps after it; there a reward of 0 means something, so in PPO on such tasks leave
means where they are, `rewards.model-rewards.centre`.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.vector import Rollouts
from etude.learners.backups import FromPolicy
from etude.learners.q import QFunctions
from etude.methods.foundation.ppo import ppo_control
from etude.methods.preference.rlhf_survey.rollouts import ModelRewards, RolloutPreferences
from etude.methods.preference.rlhf_survey.stored import ByModels, RelabelledBootstrap, ReplayPreferences
from etude.methods.value.ddpg import TENTH
from etude.methods.value.sac import sac
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam

rlhf_survey = sac.replace(
    id="rlhf-survey",
    title="A Survey of Reinforcement Learning from Human Feedback",
    paper="arXiv:2312.14925",
    row="survey",
    critic=QFunctions(
        count=2,
        backup=RelabelledBootstrap(FromPolicy(), reduce=Min(), entropy=True, payment=ByModels()),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    learners=(ReplayPreferences(count=3, length=25, labels=300), *sac.learners),
    order=("replay-preferences", *sac.order),
    claim=Claim(
        statement="From 300 comparisons of segments, a tenth of them wrong, SAC comes to about nine tenths of what "
        "rewards teach it; to more than where rewards stay what they were when a row was first learned from; and to no "
        "less than where questions are not chosen by how much the models disagree.",
        task="pendulum",
        setting="6,000 steps, networks of 64-64, three models of 64-64, segments of 25 steps, 24 sessions; returns of "
        "20 episodes of likeliest actions; a member for each seed",
        measures=(
            Measure(name="return beside rewards", smallest=TENTH, margin=-TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return relabelled", smallest=TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return beside any questions", smallest=TENTH, margin=-TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="EPIC distance", role="mechanism", direction="lower", smallest=0.05),
            Measure(name="answers", role="mechanism", direction="equal", smallest=1.0, minimum=300, bounds=(0.0, None)),
        ),
        equal=("steps",),
        sweep={},
        learned_on="return beside rewards",
        paper_effect="a survey: about 700 answers teach what true rewards do on tasks of MuJoCo (arXiv:1706.03741)",
    ),
)

rlhf_survey_ppo = ppo_control.replace(
    id="rlhf-survey-ppo",
    title=rlhf_survey.title,
    paper=rlhf_survey.paper,
    row="survey",
    experience=Rollouts(environments=8, steps=64),
    rewards=(ModelRewards(std=1.0, centre=True),),
    learners=(RolloutPreferences(count=3, length=25, labels=300),),
    claim=None,
)
