"""Selective token generation: a frozen model and an adapter write a text by turns (STG, arXiv:2209.08206).

The policy has two voices, a frozen language model p_0 and a small adapter p_1 on its states, and a selector lambda that
draws for each token which of them says it (`policies/selective.py`). Changes REINFORCE in four places:

1. an action is a voice k and a word w together, drawn with lambda_t(k) p_k(w):

       loss = -1/T sum_t A_t (log lambda_t(k_t) + log p_{k_t}(w_t)) + (V_t - R)^2,     A_t = R - V_t,    gamma = 1

   p_0 has no gradient, so the frozen model's words teach the selector alone;
2. V is a linear function of the policy's states, and learns with it (coefficient 2 of half a squared error);
3. each text is divided by its own length T;
4. a batch is 16 texts, each of another problem.

    etude train sft --task hinted-writing
    etude train selective-token-generation --task hinted-writing --model selective:RUN

`selective:RUN` is a new adapter beside that run's model, and `adapter:RUN` one that writes alone (NonSTG-RL). With a
policy of one voice this is REINFORCE with a critic. Ratios, with `objective=clipped-surrogate`, are those of the joint
probability, which begin at 1: the release (kakaobrain/stg) divides lambda_1 p_1 by lambda_0 p_0, the frozen branch's
probability of the word, instead of by what was sampled with, and that is no importance ratio.

What is sampled draws from both voices' words at once, so top-p filters them together, as the paper's "cat" does. V
reads the frozen and the adapter's states, in the release the adapter's alone; its selector is the release's one layer.
The paper's other ways to write, by the voice that the selector likes best or by the mixture of both, and its ensembles
without a selector (the larger of both chances, their mean, either voice at random) are not built.
"""

from etude.advantages.returns import GAE
from etude.core.claims import Claim, Measure
from etude.experience.groups import Groups
from etude.learners.token import TokenCritic
from etude.methods.foundation.reinforce import reinforce

selective_token_generation = reinforce.replace(
    id="selective-token-generation",
    title="Selective Token Generation for Few-shot Natural Language Generation",
    paper="arXiv:2209.08206",
    experience=Groups(size=1),
    advantages=GAE(gamma=1.0, lam=1.0, standardize=False),
    critic=TokenCritic(coefficient=2.0, clip=None),
    aggregation="sequence-mean",
    problems=16,
    claim=Claim(
        statement="From 100 worked answers, an adapter that shares the pen with the frozen model writes better on the "
        "test than one that writes alone, and loses less from training to the test.",
        task="hinted-writing",
        setting="a model of two layers of width 64 after 1,500 supervised steps on texts and 60 on 100 hints of each "
        "seed's own; then 100 steps of 64 texts on the same prompts; the unigram F1 of hints, on 400 prompts of the "
        "test",
        measures=(
            Measure(name="F1", smallest=0.01),
            Measure(name="gap", direction="lower", smallest=0.02, bounds=(None, None)),
            Measure(name="adapter at words", role="mechanism", smallest=0.05),
        ),
        sweep={},
        learned_on="F1",
        paper_effect="the best of its baselines in few-shot question answering, data to text and summarisation",
    ),
)  # fmt: skip
