"""SWE-RL: patches rewarded by how much they are like the one that people made, without running anything
(arXiv:2502.18449).

Changes GRPO in three places:

1. the task is a change that was made to software: the issue and the files, whole, are shown, and the answer is
   `<think>..</think><solution>..</solution>`, with blocks of search and replace in the solution (`rewards/patches.py`);
2. R = -1 for what has not the format or cannot be applied: a tag of the four that is not there exactly once, an empty
   thought, no block, a text that is not in its file from the beginning of a line, a block that changes nothing. Else,
   with d_p(f) and d_o(f) the unified diffs (3 lines of context, no header) of file f in the patch and in the oracle's,

       R = mean over files f that either changes of sim(d_p(f), d_o(f)),    sim = 2 M / T

   of `difflib.SequenceMatcher` without its heuristic of frequent characters, and 0 for a file that only one of them
   changes; so R is -1 or in [0, 1] (`PatchSimilarity`). No test runs for it: those of the task say at evaluation, and
   in the metrics of training, whether a patch is right;
3. 16 completions of each of 32 problems, and a KL to the reference in the loss (k3), as in GRPO's paper. Its
   coefficient, 0.001, is ours.

Beside it `--set rewards=exact-patch` pays 1 for the oracle's own change, 0 for another one, -1 as above: the discrete
reward that the paper compares it with. Tests of a scaffold that localizes, samples and ranks again are not here. The
paper's 1,600 steps at 16,000 tokens are of a model of 70 billion parameters; the rate is the parent's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode
from etude.core.fields import NonNegative
from etude.core.slots import Context, Reward
from etude.core.task import Task
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.methods.rlvr.grpo import grpo
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.rewards.patches import applied, diffs, edits_in, similarity


class Patched(Reward, abstract=True):
    """-`malformed` for a completion that is no patch of its problem's files, else what the patch is worth.

    Args:
        malformed: what is taken off for want of a patch.
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    malformed: NonNegative = 1.0

    def lacks(self, task: Task) -> str | None:
        info = task.problems("train")[0].info
        missing = [name for name in ("files", "fixed") if not info.get(name)]
        if not missing:
            return None
        return (
            f"{type(self).__name__} holds a patch of the files of a problem (`info['files']`) against the right ones "
            f"(`info['fixed']`), and problems of task {task.id!r} have no {' and no '.join(missing)}: take "
            "mini-swe-patch, or data with these columns."
        )

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self._scored(episode) for episode in episodes]

    def _scored(self, episode: Episode) -> float:
        files, edits = episode.problem.info["files"], edits_in(episode.completion)
        after = None if edits is None else applied(files, edits)
        if after is None:
            return -self.malformed
        return self.worth(diffs(files, after), diffs(files, episode.problem.info["fixed"]))

    def worth(self, predicted: dict[str, str], oracle: dict[str, str]) -> float:
        """What a change is worth, in [0, 1]; of both the diff of each file that it changes."""
        raise NotImplementedError


class PatchSimilarity(Patched):
    """How alike the diffs of a patch and of the oracle's are, the mean over the files that either changes.

    >>> PatchSimilarity().worth({"a.py": "abcd"}, {"a.py": "bcde", "b.py": "x"})
    0.375
    """

    def worth(self, predicted: dict[str, str], oracle: dict[str, str]) -> float:
        return similarity(predicted, oracle)


class ExactPatch(Patched):
    """1 for the change that the oracle makes, 0 for another one.

    >>> ExactPatch().worth({"a.py": "x"}, {"a.py": "x"}), ExactPatch().worth({"a.py": "x"}, {"a.py": "y"})
    (1.0, 0.0)
    """

    def worth(self, predicted: dict[str, str], oracle: dict[str, str]) -> float:
        return float(predicted == oracle)


swe_rl = grpo.replace(
    id="swe-rl",
    title="SWE-RL: Advancing LLM Reasoning via Reinforcement Learning on Open Software Evolution",
    paper="arXiv:2502.18449",
    experience=Groups(size=16),
    rewards=(PatchSimilarity(),),
    regularizers=(KLToReference(coefficient=0.001, estimator="k3"),),
    reference=Frozen(),
    problems=32,
    claim=Claim(
        statement="Paid for how much a patch is like the right one, it repairs more packages, by their tests, than "
        "paid for the right patch alone.",
        bed="language/mini-swe-patch",
        baseline="swe-rl",
        baseline_changes={"rewards": "exact-patch"},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
        paper_effect="41.0% of SWE-bench Verified with a model of 70 billion parameters; continuous above discrete "
        "rewards",
    ),
)
