"""SSP: search self-play; one policy poses questions of which it knows the answers, and learns to solve them.

(arXiv:2510.18821.) Changes GRPO in six places:

1. data are answers a* alone. The proposer is shown one, searches, and writes a question; the solver searches for the
   answer. Both are the same policy, told apart by what they are shown (`roles`);
2. a question is asked if rules let it pass (no question, too short or long, the answer in it, nothing found, fewer than
   two queries, a query twice) and if a* is what it comes to for whoever reads the proposer's documents, shuffled with
   those of four other proposers, without a search;
3. in place of a question that is not asked, one of earlier steps is solved, from a pool that is emptied every ten
   steps;
4. five solvers try each question; r_i = 1 for the right answer, r_i / 4 where more than ten answers were printed. The
   proposer earns 1 - mean_i r_i, and 0 for a question that is not asked, so that of each question that is

       r_p + mean_i r_i = 1;

5. solvers are compared with each other as in GRPO; the proposer, of whom there is one for each answer, learns by its
   reward alone, A = r_p (REINFORCE without a baseline). First a step on the proposers' rows, then one on the solvers',
   of the same weights;
6. the clip opens upward, [0.8, 1.285], and 0.01 of the KL to the reference, k3, holds both back.

`roles.proposer.rewards=half-solved` pays 4 m (1 - m). Not learning to propose is `roles.proposer.trained=false`; asking
whatever passes the rules `experience.verified=false`.

As published 256 answers a step in minibatches of 128, a learning rate of 1e-6, ten turns, and a model that reads the
documents, with a judge where words differ: those are of models with billions of weights. Here sizes are the parent's,
turns the tool's, and the task reads (`KBSearch.read`): facts are followed one after another. Questions of `kb-search`
are short, three words at two hops: there `experience.rules.long-enough.words=2`. What may not be posed the task says:
the questions of its split 'test'.
"""

from __future__ import annotations

from etude.advantages.group import GroupAdvantage
from etude.core.claims import Claim, Measure
from etude.curricula.accepted import AcceptedProblems
from etude.curricula.rules import AnswerUntold, LongEnough, ShortEnough
from etude.experience.proposing import PROPOSER, SOLVER
from etude.experience.roles import Plays
from etude.methods.agents.ssp.self_play import LookedUp, SearchAnswer, SelfPlay
from etude.methods.rlvr.grpo import grpo
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.rewards.proposals import HalfSolved, Unsolved

ssp = grpo.replace(
    id="ssp",
    title="Search Self-play: Pushing the Frontier of Agent Capability without Supervision",
    paper="arXiv:2510.18821",
    experience=SelfPlay(
        size=5,
        rules=(LongEnough(words=10), ShortEnough(characters=1000), AnswerUntold(), LookedUp(queries=2)),
        pool=AcceptedProblems(emptied=10),
        noise=4,
    ),
    rewards=(SearchAnswer(),),
    objective=ClippedSurrogate(low=0.2, high=0.285),
    regularizers=(KLToReference(coefficient=0.01, estimator="k3"),),
    reference=Frozen(),
    roles=(
        Plays(PROPOSER, rewards=(Unsolved(),), advantages=GroupAdvantage(centre=None, scale=None)),
        Plays(SOLVER, apart=True),
    ),
    claim=Claim(
        statement="Solving questions that it poses ever better itself, a policy answers more chains of facts that "
        "nobody posed than one whose proposer stays as it began.",
        bed="language/self-play",
        baseline="ssp",
        changes={"experience.rules.long-enough.words": 2},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        paper_effect="26.4 points on average over seven sets of questions for Qwen2.5-7B-Base, over the start; a "
        "proposer that is trained beats one that is not",
    ),
)

__all__ = ["HalfSolved", "LookedUp", "SearchAnswer", "SelfPlay", "Unsolved", "ssp"]
