"""Directional stimulus prompting: a small policy writes hints for a large frozen model (arXiv:2302.11520).

The policy writes a hint z for an input x, a black box (asked by text alone) writes y behind both, and
E_{z ~ pi(.|x)} [ R(x, y) ] is what counts. Changes PPO in six places:

1. the task: R is the mean over n = 4 texts that the black box writes at temperature 0.7 (`hinted_writing.py`);
2. every keyword of the hint is paid where it is closed: 1 if the reference has it, -0.2 if it is empty, avoided,
   repeated or absent (`keyword-reward`; for summaries, in dialogue there is none);
3. every token pays b (log pi - log pi_SFT) for its distance from the supervised policy,

       b <- b (1 + 0.1 clip(KL / 0.5 - 1, -0.2, 0.2)),   b = 0.005 at first,   KL the mean of a batch's tokens

   (dialogue: 0.01 at first, target 0.2), so that b moves by 2% a step at most (`gentle-kl-penalty`);
4. NLPO's sampling (arXiv:2210.01241): tokens come from the smallest set of mass 0.9 of a copy of the policy that is
   taken every 20 steps (`masked-groups`). Log-probabilities, and so ratios, are those within the set, in sampling as in
   training; the KL of 3 is of the whole distribution. With `experience.mask=1` this is PPO, sample for sample;
5. the reference is frozen;
6. each batch is passed over five times.

Supervised learning from a few labelled hints comes first, from which the policy begins:

    etude train sft --task hinted-writing --set task.asks=texts --model blank:2x64x4     # a writer
    etude train sft --task hinted-writing --set task.writer=RUN --model RUN
    etude train directional-stimulus-prompting --task hinted-writing --set task.writer=RUN --model RUN_OF_HINTS

`--with hintless-baseline` takes from R what the black box writes without hints. The paper's 10 (R - R without hints) is
that with both weights at 10: an expected gradient in the same direction, ten times as long. Where the black box ignores
hints R has none, and 2 and 3 alone act.

The paper's policy is a T5 of 770 million weights at a rate of 2e-6, 512 x 10 tokens a step in minibatches of 8; here as
many completions a step as PPO has. The release (Leezekun/Directional-Stimulus-Prompting) keeps tokens that end a text
in every set, as here, and for summaries the 100 likeliest ones besides; it samples within the 50 or 100 likeliest of
the policy's own, which its ratios leave out, and that is left out. Texts are worth their unigram F1 here, by
`hinted-writing`: the paper's rewards are ROUGE for summaries and SacreBLEU for dialogue, which are not built, and
neither are its hints for reasoning, trigger sentences ("let's think step by step" and their like) chosen for an input.
"""

from etude.core.claims import Claim, Measure
from etude.methods.foundation.ppo import ppo
from etude.methods.preference.directional_stimulus_prompting.masked import GentleKLPenalty, MaskedGroups
from etude.methods.preference.directional_stimulus_prompting.stimuli import KeywordReward
from etude.references.frozen import Frozen
from etude.rewards.outcome import TaskReward

directional_stimulus_prompting = ppo.replace(
    id="directional-stimulus-prompting",
    title="Guiding Large Language Models via Directional Stimulus Prompting",
    paper="arXiv:2302.11520",
    experience=MaskedGroups(size=8, mask=0.9, every=20),
    rewards=(TaskReward(), KeywordReward(), GentleKLPenalty(coefficient=0.005, target=0.5)),
    reference=Frozen(),
    epochs=5,
    claim=Claim(
        statement="With few labelled hints, those that reinforcement goes on from make a frozen writer write more of "
        "the reference than those of supervised learning alone, and these more than no hints.",
        task="hinted-writing",
        setting="a writer of two layers of width 64 after 1,500 supervised steps, and policies that begin as it does; "
        "500 labelled hints of each seed's own for 150 supervised steps, then 120 steps of 128 completions on the same "
        "prompts; the unigram F1 of four texts behind a hint, on 400 prompts of the test",
        measures=(
            Measure(name="F1 against supervised hints", smallest=0.01),
            Measure(name="F1 of supervised hints against none", smallest=0.01),
            Measure(name="hints in reference", role="mechanism", smallest=0.05),
        ),
        sweep={},
        learned_on="F1 against supervised hints",
        paper_effect="MultiWOZ with 80 dialogues: ChatGPT's combined score 41.4% higher; CNN/DailyMail with 4,000 "
        "articles: ROUGE 4 to 13% higher",
    ),
)  # fmt: skip
