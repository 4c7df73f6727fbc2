"""TL-Training: calls of tools learned by their key tokens, without those that failed (arXiv:2412.15495).

Changes supervised fine-tuning in three places, and then PPO (`tl-training-ppo`) in three:

1. MAE, mitigate adverse effects: dialogues are taken apart into histories, each with the call that followed, and one
   that was answered with an error is left out (`SoundCalls`). It stays in the histories of later calls;
2. PKT, prioritise key tokens: the first token of the tool's name, and the first at which its call differs from that of
   another tool that is listed, weigh w = min(n_other / n_key, 9) where n_key < n_other, else 1 (`KeyTokens`):

       loss = mean over calls of sum_t w_t (-log pi(y_t)) / sum_t w_t;

3. every call counts the same (`sequence-mean`), as in steps of single calls;
4. IRM, the reward: from -2 for a call that cannot be read to 1 for the right one, by the kind of error (`CallErrors`),
   cut at -5 and 5 and paid on the last token;
5. each token pays 0.4 per nat for its distance from the policy at the start;
6. advantages are not standardised.

    etude train tl-training --task tool-dialogue --model blank:2x128x4@services --set optimizer.lr=2e-3
    etude train tl-training-ppo --task tool-dialogue --model RUN

With `token_weights.key-tokens.most=1` what is left of PKT is the mean of the tokens' losses, and of dialogues without
errors all calls are kept. The paper trains a model of seven billion weights for one epoch at a rate of 1e-6 (AdamW).

As in the released code (Junjie-Ye/TL-Training): tokens that end a parameter's value keep weight 1 and are not counted
in n_other; where another tool's name goes on from the right one, the token behind the name is a key token; texts of
errors are compared without punctuation, so that a reply with `error` anywhere in it is one; a parameter counts as D
only if the tool has it. The released code takes the parameters of the tool that the prompt names last, if it names one
behind its last `Assistant:`; here they are always those of the tool that was called. It also gives a call without a
name -1.5, as another tool, for which the paper's table and this one have -2.
"""

from etude.advantages.returns import GAE
from etude.core.claims import Claim, Measure
from etude.methods.agents.tl_training.calls import CallErrors, SoundCalls
from etude.methods.agents.tl_training.key_tokens import KeyTokens, MarkedCalls
from etude.methods.foundation.ppo import ppo
from etude.methods.foundation.sft import sft
from etude.references.frozen import Frozen
from etude.rewards.control import ClippedScores
from etude.rewards.kl import KLPenalty

tl_training = sft.replace(
    id="tl-training",
    title="TL-Training: A Task-Feature-Based Framework for Training Large Language Models in Tool Use",
    paper="arXiv:2412.15495",
    experience=MarkedCalls(),
    filters=(SoundCalls(),),
    token_weights=(KeyTokens(most=9.0),),
    aggregation="sequence-mean",
    claim=Claim(
        statement="With key tokens first, and without calls that failed, more calls are exactly right than by plain "
        "fine-tuning on the same dialogues, and fewer have a parameter that the tool does not have.",
        task="tool-dialogue",
        setting="1,217 dialogues, a fifth with a wrong call; two layers of 128 that have read 1,500 x 32 calls of "
        "other dialogues, each with a wrong one; 60 steps of 64 calls of each way to tune, then 40 of PPO of 128 calls "
        "from what tl-training came to; 400 test problems x 2",
        measures=(
            Measure(name="exact", smallest=0.02),
            Measure(name="foreign parameter", direction="lower", smallest=0.005),
            Measure(name="exact against no key tokens", role="mechanism", smallest=0.02),
            Measure(name="no key tokens against sft", role="mechanism", smallest=0.02),
            Measure(name="foreign parameter against no filter", role="mechanism", direction="lower", smallest=0.005),
            Measure(name="exact after PPO", role="mechanism", smallest=0.02),
            Measure(
                name="worth after PPO", role="mechanism", smallest=0.05, bounds=(-2.0, 1.0),
            ),
        ),
        equal=("rows",),
        sweep={"optimizer.lr": (2.5e-4, 5e-4, 1e-3)},
        learned_on="exact",
        paper_effect="a model of 7B tuned on 1,217 dialogues matches or beats larger open and closed ones on four sets "
        "of calls",
    ),
)  # fmt: skip

tl_training_ppo = ppo.replace(
    id="tl-training-ppo",
    title=tl_training.title,
    paper=tl_training.paper,
    rewards=(CallErrors(), ClippedScores(low=-5.0, high=5.0), KLPenalty(coefficient=0.4)),
    advantages=GAE(gamma=1.0, lam=0.95, standardize=False),
    reference=Frozen(),
    claim=None,
)
