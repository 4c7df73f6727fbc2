"""Episodes of several turns that etude and TRL both play: their sizes, and what the tool answers. Imports neither.

Every turn has the same number of tokens and every observation too, and no turn ends by itself, so that episodes are
equally long whatever is sampled. A tool answers with words that a checksum of what was said picks: two episodes that
say different things are shown different things, as by a real tool.
"""

from __future__ import annotations

import random
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from _cases import GROUP, MODELS, Case, make_model, prompts

NEVER = 10**12
"""The end token has a chance of one in so many."""


@dataclass(frozen=True)
class Talk(Case):
    """One row of the table: `completions` episodes of `turns` turns, `answer` tokens in each of them.

    Args:
        observation: tokens that the tool answers after every turn but the last.
        seconds: that the tool waits.
    """

    turns: int = 1
    observation: int = 4
    seconds: float = 0.0

    @property
    def said(self) -> int:
        """Tokens that the policy says in an episode."""
        return self.turns * self.answer

    @property
    def length(self) -> int:
        """Tokens of an episode after its prompt."""
        return self.said + (self.turns - 1) * self.observation

    def openings(self) -> list[str]:
        """The prompts of the problems, each of which a group plays."""
        return prompts(self, self.completions // GROUP)

    def tool(self, said: str) -> str:
        """What is answered."""
        if self.seconds:
            time.sleep(self.seconds)
        words = range(MODELS[self.model]["vocab"] - 2)
        picked = random.Random(zlib.crc32(" ".join(said.split()).encode())).choices(words, k=self.observation)
        return " ".join(f"w{i}" for i in picked)


TALKS = {
    t.name: t
    for t in (
        Talk("single", "tiny", (19, 19), 24, 256, turns=1),
        Talk("steps", "tiny", (19, 19), 2, 256, turns=12),
        Talk("questions", "tiny", (16, 64), 8, 256, turns=8, observation=8),
        Talk("calls", "tiny", (64, 128), 32, 64, turns=6, observation=64),
        Talk("calls-10M", "10M", (64, 128), 32, 16, turns=6, observation=64),
        Talk("waits", "tiny", (19, 19), 4, 64, turns=3, seconds=0.05),
    )
}


def make_talker(talk: Talk, folder: Path) -> Path:
    """A random model that never ends its turn."""
    return make_model(replace(talk, answer=NEVER), folder)
