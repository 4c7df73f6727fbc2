"""COS(M+O)S: a search for stories that are coherent and not what one expects, and ORPO on what it preferred
(arXiv:2501.17104).

Changes DPO in three places:

1. pairs are made by a tree search after each beginning (`pairs-by-search`). A step is a sentence: its first token, the
   event, is the action a, and what follows is the world's answer, which the same model writes. The way down is

       argmax_a  Q(s, a) + c sqrt(log N(s) / N(s, a)),

   for 60 nodes and four ways from each; none is told to its end, and Q(s, a) is the mean of V below. Of several
   actions after a beginning that were visited twice or more the best is chosen and the worst rejected, where their Q
   differ by more than 0.05;
2. V(s) in [0, 1] is a small network on three features of the text so far (`curious-value`): its surprisal index S, by
   quantiles of a corpus, curiosity 4 S (1 - S), and coherence; fitted to scored answers;
3. the loss is ORPO's, of the action alone, without a reference:

       -1/|a_w| log pi(a_w | s) - lambda log sigmoid(log odds(a_w | s) - log odds(a_l | s)),    lambda = 0.1

    etude train cosmos-mcts --task grammar-stories --model RUN --steps 3

Each step searches by the policy as it is, so a step is a round: of 100 beginnings, learned from in four minibatches. N,
b, D, c and all weights of V are ours (`experience.search`, `experience.search.guide`). The paper writes with a language
model of 3B and low-rank adapters (`--adapter lora`), and its V is trained on stories by people against degraded ones.
Here surprisal is the policy's own, and V is fitted anew for each round, so that it does not shift as the policy learns.
No code is public.
"""

from etude.core.claims import Claim, Measure
from etude.methods.preference.cosmos_mcts.search import UCT, PairsBySearch, values
from etude.methods.preference.cosmos_mcts.value import Beginning, CuriousValue, Scale, beginnings, curiosity
from etude.methods.preference.dpo import dpo
from etude.methods.preference.orpo import orpo

cosmos_mcts = dpo.replace(
    id="cosmos-mcts",
    title="COS(M+O)S: Curiosity and RL-Enhanced MCTS for Exploring Story Space via Language Models",
    paper="arXiv:2501.17104",
    experience=PairsBySearch(search=UCT(simulations=60, branch=4, exploration=0.5, depth=6, guide=CuriousValue())),
    objective=orpo.objective,
    reference=None,
    problems=100,
    minibatches=4,
    claim=Claim(
        statement="Stories that a search by curiosity and coherence finds are worth more than the best of as many "
        "sampled tokens by the same value, and after three rounds of ORPO on its pairs stories are worth more that are "
        "told at once.",
        task="grammar-stories",
        setting="60 words; two layers of width 64 after 300 supervised steps on common stories; 60 nodes, four ways, V "
        "of 512 scored stories; rounds of 48 beginnings",
        measures=(
            Measure(name="gold", smallest=0.02),
            Measure(name="gold, told at once", smallest=0.02),
            Measure(name="gold, a quarter of the search", role="mechanism", smallest=0.02),
            Measure(name="tokens", role="mechanism", direction="equal", smallest=40.0, bounds=(0.0, None)),
        ),
        sweep={},
        learned_on="gold",
        paper_effect="67 to 77 % of raters prefer expansions of high value; rated 0.59 deviations above one pass of "
        "the same 3B model, within 0.06 of one of 70B",
    ),
)

__all__ = [
    "UCT",
    "Beginning",
    "CuriousValue",
    "PairsBySearch",
    "Scale",
    "beginnings",
    "cosmos_mcts",
    "curiosity",
    "values",
]
