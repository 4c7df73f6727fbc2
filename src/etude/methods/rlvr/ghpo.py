"""GHPO: problems that are too hard now are tried again with the beginning of their answer (arXiv:2507.10628).

Changes GRPO in three places:

1. a problem of which every completion is wrong is sampled again with a quarter of its worked answer in the prompt,
   then with a half, then with three quarters, as long as all stay wrong. The new group takes the old one's place,
   prompt included: what is shown is conditioned on and never learned, and log-probabilities are those of the prompt
   that the group was sampled with (`LookAgain`);
2. advantages are divided by the sample standard deviation (n - 1), and 1e-6 beside it (1e-4 in the release);
3. the loss is the mean over all tokens.

The released trainer rebuilds the prompts of the second and third stage from the plain ones, so that a group that an
earlier stage solved is trained without its hint when another goes on; this follows the paper. There the reward is
accuracy plus half a point for the format (`--with format-reward`). A constant share is `second_look.shows.shares=0.5`,
the same for all problems `second_look.which=all-problems`; `second_look.after=20` is the step of the first hint. The
paper's cold start, a constant half for the first 20 steps or so, is not here. Models that go on from a prompt rather
than follow it are shown the beginning as such by `second_look.shows.text={}`.
"""

from etude.advantages.group import GroupAdvantage, GroupMean, GroupSampleStd
from etude.core.claims import Claim, Measure
from etude.experience.second_look import LookAgain, NewAttempts, UnsolvedProblems
from etude.experience.shown import SolutionInPrompt
from etude.methods.rlvr.grpo import grpo

ghpo = grpo.replace(
    id="ghpo",
    title="GHPO: Adaptive Guidance for Stable and Efficient LLM Reinforcement Learning",
    paper="arXiv:2507.10628",
    second_look=LookAgain(
        which=UnsolvedProblems(), shows=SolutionInPrompt(shares=(0.25, 0.5, 0.75)), keeps=NewAttempts()
    ),
    advantages=GroupAdvantage(centre=GroupMean(), scale=GroupSampleStd()),
    aggregation="token-mean",
    claim=Claim(
        statement="With the beginning of the answer in view where everything fails, it learns more than GRPO without.",
        bed="language/compose-hard",
        baseline="grpo",
        changes={"second_look.shows.text": "{}"},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"optimizer.lr": (1e-4, 2e-4), "minibatches": (1, 4)},
        paper_effect="about 5% over six benchmarks of mathematics on average",
    ),
)
