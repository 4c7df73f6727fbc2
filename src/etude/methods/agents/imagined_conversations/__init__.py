"""IE+RL: offline RL on dialogues that nobody had (arXiv:2311.05584).

A recipe of two runs:

1. an imagination engine writes dialogues with made-up personas, both sides, as people would: not badly, and not well.
   A critique rejects those whose user contradicts the persona or in which nothing is asked, and has them written anew;
   what was recommended in the end is paid if it is the persona's (`imagine`);
2. ILQL learns from them alone: a policy clones all, two Q and a V of tokens tilt it,

       pi(a | s) = pi_beta(a | s) exp(beta (min_i Q_i(s, a) - V(s))) / Z

   It is evaluated against personas that were never imagined; nobody plays before.

The paper's engine is GPT-3.5, asked three times (reflection, imagination, critique), and its tasks are teaching and
travel; no code of it was published. Here the engine is a procedure over `recommend`, whose personas are sets of
preferences: what it makes has the faults that the paper names, early recommendations and users that contradict
themselves, at rates that are fields of it. `--set runs.imagined.drafts=0` leaves the critique out.
"""

from etude.core.claims import Claim, Measure
from etude.core.recipe import Recipe
from etude.methods.agents.imagined_conversations.imagination import Imagine
from etude.stages.chain import Train

imagined_conversations = Recipe(
    id="imagined-conversations",
    title="Zero-Shot Goal-Directed Dialogue via RL on Imagined Conversations",
    paper="arXiv:2311.05584",
    runs=(
        Imagine(called="imagined", problems=200),
        Train(called="rl", method="ilql", steps=150, set=("task.data={imagined}",)),
    ),
    claim=Claim(
        statement="Learned from imagined dialogues alone, values of tokens recommend to unseen personas what is right "
        "more often than cloning all dialogues or the best fifth of them does, after more questions that matter; "
        "without the critique they do so less often.",
        task="recommend",
        setting="personas of six preferences, three of which decide between eight activities, five turns; 40 imagined "
        "dialogues with each persona of 'train', an answer in seven wrong before the critique; tiny, 150 steps of 32 "
        "dialogues; 400 dialogues with other personas",
        measures=(
            Measure(name="right", smallest=0.03, bounds=(0.0, 1.0)),
            Measure(name="right, against the best fifth", smallest=0.03, bounds=(0.0, 1.0)),
            Measure(name="right, with the critique", smallest=0.03, bounds=(0.0, 1.0)),
            Measure(name="questions that matter", role="mechanism", smallest=0.1, bounds=(0.0, 3.0)),
        ),
        sweep={},
        learned_on="right",
        paper_effect="preferred by people to prompted GPT-3.5 and to imitation of the imagined dialogues",
    ),
)
