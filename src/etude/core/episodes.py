"""What is recorded of language: problems, and the episodes in which they were worked on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from etude.core.draws import Draw

Role = Literal["system", "developer", "user", "assistant", "tool", "summary", "critique", "subgoal"]
Message = Mapping[str, Any]
"""`role` and `content`, as text or as parts `{"type": "text", "text": ...}`; what else chat templates read, such as
`tool_calls`, may be there too."""


FIRST = "policy"
"""Who plays an episode that has one player; also the name of the model that a run begins with."""


class StopReason(StrEnum):
    """Why an episode or a completion ended.

    Two words for what a limit stops: a completion is *cut* by a limit of tokens or of context, and is scored as it
    stands; an episode is *truncated* by its environment's own limit, of turns or of time, before its outcome.
    """

    TERMINATED = "terminated"  # the environment ended the episode
    END_OF_TEXT = "end_of_text"  # the policy sampled its end token
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    MAX_TURNS = "max_turns"
    CONTEXT_OVERFLOW = "context_overflow"
    TRUNCATED = "truncated"  # the environment's own limit
    PAUSED = "paused"  # it goes on in a later step, or in other rows, which will say what it is worth
    FAULT = "fault"  # the environment raised; the episode is discarded

    @property
    def cut(self) -> bool:
        """Whether tokens or context ran out before the policy was done. The reward is paid: no value follows."""
        return self in (StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW)

    @property
    def truncated(self) -> bool:
        """Whether the environment stopped before the outcome, so that values go on. Truncated is not terminated."""
        return self in (StopReason.MAX_TURNS, StopReason.TRUNCATED)


@dataclass(frozen=True)
class Problem:
    """One thing to solve.

    Args:
        id: unique within its task; keys splits, curricula and resume.
        prompt: text, or chat messages (`[{"role": ..., "content": ...}]`).
        answer: what the verifier needs; never shown to the policy.
        level: the distribution or difficulty it was drawn from, for curricula and reports.
        info: anything else (demonstrations, chosen/rejected answers, user columns). `template_arguments` are given to
            the model's chat template (`tools`, switches); `demonstration_message` is the worked answer where that is
            more than text (`tool_calls`).
    """

    id: str
    prompt: str | Sequence[Message]
    answer: Any = None
    level: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)


def occurrences(problems: Sequence[Problem]) -> list[int]:
    """How often each problem stood in the list before."""
    seen: Counter[str] = Counter()
    numbers = []
    for problem in problems:
        numbers.append(seen[problem.id])
        seen[problem.id] += 1
    return numbers


@dataclass
class Segment:
    """A run of tokens by one speaker.

    `tokens` is the only record of what was sampled; `text` is a view of it (for observations, what to encode).
    `action_mask` is 1 on tokens that the policy sampled and is trained on.
    """

    role: Role
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    action_mask: list[int] = field(default_factory=list)
    behaviour_logp: list[float] = field(default_factory=list)
    version: int = -1
    reward: float = 0.0
    duration: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def versions(self) -> list[int]:
        """Of the policy that said it, by token, as `info["versions"]` has them where there were several."""
        found: list[int] = self.info.get("versions") or [self.version] * len(self.tokens)
        return found


@dataclass
class Episode:
    """A list of segments, for one turn or forty.

    Args:
        group: episodes of one group answer the same problem and are compared with each other.
        player: role among several players (proposer, solver, critic, ...); what is seen, said and paid here is its own.
        parent: index of the episode this one was branched from, at turn `fork_turn`.
        seed: what its environment was reset with.
        draw: where its random numbers come from; None: nothing of it was sampled.
        written: what the policy says in it was written, not sampled.
        elsewhere: its tokens were sampled in another context than the one that it shows (a hint was left out), so that
            their log-probabilities are not those of this context.
        auxiliary: it is something said about an attempt, or to be imitated, and no attempt: it counts as a row alone.
        scores: reward by component, filled in by the rewards; `total` is their sum, and `outcome` that of the parts
            that judge outcomes: the total without penalties on how it came about.
        views: what was seen and said of it, where the policy did not see everything: the segments of each training
            row, actions being those tokens that were sampled there. Empty: everything was seen, in one row.
        part_of: the episode that this is a row of, whose `info` and `scores` it shares; None: it is whole.
        beside: the same game as its other players saw it, an episode for each of them that had a turn.
    """

    problem: Problem
    segments: list[Segment] = field(default_factory=list)
    group: int = 0
    player: str = FIRST
    parent: int | None = None
    fork_turn: int | None = None
    seed: int = 0
    draw: Draw | None = None
    written: bool = False
    elsewhere: bool = False
    auxiliary: bool = False
    stop: StopReason = StopReason.TERMINATED
    scores: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    outcome: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)
    views: list[list[Segment]] = field(default_factory=list)
    part_of: Episode | None = None
    beside: list[Episode] = field(default_factory=list)

    @property
    def whole(self) -> Episode:
        """The episode that this is a row of."""
        return self if self.part_of is None else self.part_of

    @property
    def rows(self) -> list[Episode]:
        """Each of its training rows by itself."""
        return [replace(self, segments=v, views=[], part_of=self) for v in self.views] or [self]

    @property
    def completion(self) -> str:
        """Text of everything the policy said."""
        return "".join(s.text for s in self.segments if s.role == "assistant")

    @property
    def reward(self) -> float:
        """What the environment paid, summed over turns."""
        return sum(s.reward for s in self.segments)

    @property
    def unfinished(self) -> bool:
        """Whether it goes on in a later step, so that no reward is asked about it yet."""
        return self.stop is StopReason.PAUSED

    @property
    def probe(self) -> bool:
        """Whether it was sampled only to tell what a text is worth, number `info["prefix"]`: it is not learned from."""
        return "prefix" in self.info

    @property
    def turns(self) -> list[Segment]:
        """The segments in which the policy sampled."""
        return [s for s in self.segments if any(s.action_mask)]

    @property
    def tokens(self) -> list[int]:
        return [t for s in self.segments for t in s.tokens]

    @property
    def action_count(self) -> int:
        """Number of sampled tokens."""
        return sum(sum(s.action_mask) for s in self.segments)
