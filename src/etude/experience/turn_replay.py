"""Turns of earlier episodes, kept, and what the policy of now would say there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.fields import Count
from etude.core.kept import stored_problem
from etude.core.part import Part
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.experience.groups import Groups
from etude.experience.texts import Texts, observed
from etude.learners.utterances import TURN, EncodedTurn

if TYPE_CHECKING:
    from etude.core.task import Task
    from etude.policies.language import LanguagePolicy

TOKENS = 8192
"""Padded tokens that are read at a time."""


class StoredTurn(NamedTuple):
    """A turn: what was shown, tokens[:begin]; what was said, tokens[begin:end]; what was shown then, all tokens.

    `reward` is what was paid from there to the next turn; `done` that nothing follows which is worth anything.
    """

    problem: Problem
    tokens: list[int]
    begin: int
    end: int
    reward: float
    done: bool


class TurnReplay(Part):
    """The last `capacity` turns of all episodes that were scored: state, utterance, reward, next state, done.

    Tokens of an episode are kept once, and leave with it, the oldest first. A turn after which an environment's limit
    stopped the episode is not done. Problems must be JSON values.

    Shapes: turns [N, 4] (episode, begin, end, where the next begins), rewards and done [N], of rows [B, T].

    >>> replay = TurnReplay(capacity=100).bind()
    >>> len(replay.draw(8, np.random.default_rng(0)))  # nothing is stored yet
    0
    """

    slot = "replay"
    capacity: Count = 100_000

    def initial_state(self) -> dict[str, Any]:
        return {
            "problems": [], "sizes": torch.zeros(0, dtype=torch.int64), "tokens": torch.zeros(0, dtype=torch.int32),
            "turns": torch.zeros(0, 4, dtype=torch.int64), "rewards": torch.zeros(0, dtype=torch.float64),
            "done": torch.zeros(0, dtype=torch.bool),
        }  # fmt: skip

    @property
    def count(self) -> int:
        """How many turns there are."""
        return len(self.state["rewards"])

    def before_update(self, batch: TokenBatch) -> None:
        """Keep the turns of rows that have ended, with what they were paid."""
        state, paid = self.state, batch.rewards.detach().double().cpu()
        new: dict[str, list[Any]] = {name: [] for name in state if name != "problems"}
        for row in batch.finished.nonzero()[:, 0].tolist():
            episode = batch.episodes[row]
            tokens, spans, game = episode.tokens, _spans(episode), len(state["problems"])
            ends = [*(begin for begin, _ in spans[1:]), len(tokens)]
            state["problems"].append(stored_problem(episode.problem))
            new["sizes"].append(len(tokens))
            new["tokens"] += tokens
            new["turns"] += [[game, begin, end, after] for (begin, end), after in zip(spans, ends)]
            new["rewards"] += [float(paid[row, begin:after].sum()) for (begin, _), after in zip(spans, ends)]
            new["done"] += [False] * (len(spans) - 1) + [not episode.stop.truncated]
        if new["sizes"]:
            state |= {k: torch.cat([state[k], torch.tensor(v, dtype=state[k].dtype)]) for k, v in new.items()}
        self._forget()

    def draw(self, count: int, order: np.random.Generator) -> list[StoredTurn]:
        """`count` turns, each as likely as any, several times perhaps; none where none is stored."""
        if not self.count:
            return []
        begins = self.state["sizes"].cumsum(0) - self.state["sizes"]
        found = []
        for place in order.integers(self.count, size=count).tolist():
            game, begin, end, after = self.state["turns"][place].tolist()
            first = int(begins[game])
            problem, tokens = Problem(**self.state["problems"][game]), self.state["tokens"][first : first + after]
            reward, done = float(self.state["rewards"][place]), bool(self.state["done"][place])
            found.append(StoredTurn(problem, tokens.tolist(), begin, end, reward, done))
        return found

    def _forget(self) -> None:
        """Let the oldest episodes go while there are too many turns."""
        state, owners = self.state, self.state["turns"][:, 0]
        if (excess := self.count - self.capacity) <= 0:
            return
        games = int(owners[excess - 1]) + 1
        kept = owners >= games
        state["tokens"] = state["tokens"][int(state["sizes"][:games].sum()) :].clone()
        state["problems"], state["sizes"] = state["problems"][games:], state["sizes"][games:].clone()
        state |= {name: state[name][kept] for name in ("turns", "rewards", "done")}
        state["turns"][:, 0] -= games


def _spans(episode: Episode) -> list[tuple[int, int]]:
    """Where each turn begins and ends among the tokens of an episode."""
    found, place = [], 0
    for segment in episode.segments:
        if any(segment.action_mask):
            begin = max(1, place + list(segment.action_mask).index(1))
            found.append((begin, place + len(segment.tokens)))
        place += len(segment.tokens)
    return found


class StoredStates(Groups):
    """`size` episodes of each problem, which fill a replay, and utterances said anew at the states of `states` turns.

    Those are rows of one turn, of which no reward is known (`StopReason.PAUSED`); `info["turn"]` of each has the stored
    turn as the policy reads it now (`EncodedTurn`). No environment is asked about them.

    Args:
        states: turns that are drawn of the replay in a step.

    >>> StoredStates(size=1, states=64).replay.capacity
    100000
    """

    pauses: ClassVar[bool] = True
    size: Count = 1
    states: Count = 256
    replay: TurnReplay = TurnReplay()

    def lacks(self, task: Task) -> str | None:
        if players := getattr(task, "players", ()):
            return (
                f"stored turns are those of one player, and {task.id!r} is played by {', '.join(players)}: take a game "
                "for one."
            )
        return super().lacks(task)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        games, policy = super().collect(problems, context), context.policy
        drawn = self.replay.draw(self.states, context.stream.split("replay").numpy)
        turns = [turn for turn in drawn if turn.end < policy.context]
        if not turns:
            return games
        draws = [context.stream.draw("stored", number) for number in range(len(turns))]
        said = self._said(turns, draws, context)
        rows = [
            Episode(turn.problem, segments, len(problems) + number, draw=draw, stop=StopReason.PAUSED)
            for number, (turn, segments, draw) in enumerate(zip(turns, said, draws))
        ]
        rows = [row for row in rows if row.action_count and len(row.tokens) < policy.context]
        stored = [turns[row.group - len(problems)] for row in rows]
        for row, found in zip(rows, encoded(policy, stored, [row.tokens for row in rows])):
            row.info[TURN] = found
        return games + rows

    def _said(self, turns: Sequence[StoredTurn], draws: Sequence[Draw], context: Context) -> list[list[Segment]]:
        """What was shown at each turn, and what the policy says to it now."""
        policy, texts = context.policy, Texts(context)
        shown = [turn.tokens[: turn.begin] for turn in turns]
        completions = policy.generate(shown, self.sampling(context), [draw.child("tokens") for draw in draws])
        return [
            [observed(Segment("user", policy.decode(tokens)), tokens), texts.said(completion)]
            for tokens, completion in zip(shown, completions)
        ]


def encoded(policy: LanguagePolicy, turns: Sequence[StoredTurn], anew: Sequence[list[int]]) -> list[EncodedTurn]:
    """Turns as the policy reads them, each with the tokens [L] of its state and what was said there anew."""
    goes_on = [not turn.done and len(turn.tokens) < policy.context for turn in turns]
    places = [[turn.begin, turn.end, *[len(turn.tokens)] * on] for turn, on in zip(turns, goes_on)]
    texts = [turn.tokens[: reach[-1]] for turn, reach in zip(turns, places)]
    stored, fresh = read_states(policy, texts, places), read_states(policy, anew, [[len(text)] for text in anew])
    found = []
    for turn, on, states, [other] in zip(turns, goes_on, stored, fresh):
        after = states[-1] if on else torch.zeros_like(states[0])
        found.append(EncodedTurn(states[0], states[1], after, other, turn.reward, not on))
    return found


@torch.no_grad()
def read_states(policy: LanguagePolicy, texts: Sequence[list[int]], places: Sequence[list[int]]) -> list[Tensor]:
    """[len(places), H] of each text, the policy's last states after so many first tokens, in rising order, each once.

    A place may be the text's length, which is less than the policy's context.
    """
    from etude.policies.micro_batches import micro_batches

    pad, rows = policy.tokenizer.pad_token_id, []
    for group, (text, wanted) in enumerate(zip(texts, places)):
        mask = np.zeros(len(text) + 1, np.int64)
        mask[wanted] = 1
        whole = Segment("user", "", [*text, pad], mask.tolist(), [0.0] * len(mask))
        rows.append(Episode(Problem("", ""), [whole], group))
    batch, found = to_batch(rows, pad, 1.0, policy.device), [torch.zeros(0)] * len(rows)
    for piece in micro_batches(policy, batch, TOKENS):
        micro = batch.rows(piece, trim=True)
        hidden = policy.evaluate(micro, {"hidden"}).hidden
        assert hidden is not None
        for number, states, mask in zip(piece.tolist(), hidden, micro.action_mask):
            found[number] = states[mask]
    return found
