"""ArCHer: a critic of whole utterances, learned off-policy, above a policy gradient over tokens (arXiv:2402.19446).

Changes PPO in five places:

1. all turns of all games are kept, (s, a, r, s', done) with s what was shown and said so far and a an utterance
   (`TurnReplay`, the last 100,000); in each step 256 of them are drawn, and the policy says another a~ at each of their
   states. No environment is asked about those (`StoredStates`);
2. two Q(s, a) and two V(s) of utterances learn from what was drawn, 50 times in a step (in the paper each time from
   other turns),

       Q_i(s, a) -> r + gamma (1 - done) V'_i(s'),    V_i(s) -> Q'_i(s, a~),    gamma = 0.95,

   by squared errors; V', Q' are slow copies that go a tenth of the way each time (`UtteranceCritic`);
3. the policy learns from the utterances said anew alone, each of them worth A = min_i Q_i(s, a~) - min_i V_i(s), at all
   of its tokens; in the first 20 steps it waits for the critic (`UtteranceAdvantages`);
4. its loss is -A sum_h log pi(a^h | s, a^{<h}), without ratio or clip, up to a constant (the length limit), in three
   steps on a third of the utterances each; the paper says new ones for each of its three passes;
5. no value of tokens, and one game of each problem.

`--with prefix-baseline` (learners) has the paper's baseline b(s, a^{<h}) at each token, which is regressed to A and
taken off it; `--set objective=clipped-surrogate` the clipped step over tokens.

Q and V are heads of two hidden layers on the policy's own last states, without gradient to it; the paper's read a
RoBERTa that they train. The critic that gives credit is that of the step before, and what is drawn are turns up to it.
An environment's limit truncates a game here: its last state has a value; in the paper games end there. Not here: the
offline form (expectile V, advantage-weighted regression on logged utterances), and Monte Carlo advantages.
"""

from etude.advantages.utterances import UtteranceAdvantages
from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.turn_replay import StoredStates, TurnReplay
from etude.learners.heads import Squared
from etude.learners.utterances import UtteranceCritic
from etude.methods.foundation.ppo import ppo
from etude.objectives.policy_gradient import PolicyGradient
from etude.optimizers.adam import AdamW

archer = ppo.replace(
    id="archer",
    title="ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL",
    paper="arXiv:2402.19446",
    problems=64,
    experience=StoredStates(size=1, states=256, replay=TurnReplay(capacity=100_000)),
    advantages=UtteranceAdvantages(warmup=20),
    objective=PolicyGradient(),
    aggregation="fixed-length",
    critic=None,
    learners=(
        UtteranceCritic(
            gamma=0.95,
            error=Squared(),
            state_error=Squared(),
            learning=Learning(optimizer=AdamW(lr=1e-3), epochs=50, target=Target(rate=0.1)),
        ),
    ),
    epochs=1,
    minibatches=3,
    claim=Claim(
        statement="With a critic of utterances that learns from all games so far, the policy is paid more after as "
        "many games than with PPO over tokens.",
        bed="language/turns",
        baseline="ppo",
        changes={"advantages.warmup": 5},
        baseline_changes={"problems": 64, "experience.size": 1},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        paper_effect="about 100 times fewer samples than on-policy baselines on five tasks of conversations and games",
    ),
)
