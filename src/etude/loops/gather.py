"""Gather: all of a language step that needs the sampler, from problems to rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import EnvironmentFault, InvariantError
from etude.core.player_slots import Seat
from etude.core.players import names_of
from etude.core.pools import Streamed
from etude.core.rows import to_batch
from etude.core.slots import Context, Curriculum
from etude.core.task import LanguageTask
from etude.policies.language import LanguagePolicy
from etude.policies.lengths import prompt_lengths

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod


class Gatherer:
    """Makes rows of the problems that a method's curriculum chooses.

    Args:
        pool: what is chosen from; prompts that leave no room are taken out where the task says so.
        limit: tokens of one completion at most.
        dropped: counts episodes that make no row, by reason.
    """

    def __init__(
        self, task: LanguageTask, policy: LanguagePolicy, pool: Sequence[Problem], limit: int, dropped: Counter[str]
    ) -> None:  # fmt: skip
        self.task, self.policy, self.limit, self.dropped = task, policy, limit, dropped
        self.pool = self._fitting(pool)
        self.told_overflow = False

    def _fitting(self, pool: Sequence[Problem]) -> Sequence[Problem]:
        """The problems whose prompt leaves room for a completion, for tasks that say what to do with the others.

        Pools that are made or read on demand are not read in advance: there a prompt that fills the context is counted
        and left out when it comes (faults row 17).
        """
        if self.task.on_long_prompt is None or isinstance(pool, Streamed):
            return pool
        from etude.tasks.language.files import fit_prompts

        lengths = prompt_lengths(pool, self.task, self.policy)
        limit = self.task.prompt_limit or self.policy.context - self.limit
        kept, sentence = fit_prompts(
            pool, lengths, max(1, min(limit, self.policy.context - 1)), self.task.on_long_prompt
        )
        if sentence:
            warnings.warn(sentence, stacklevel=4)
        return kept

    def gather(self, method: CompleteTokenMethod, count: int, context: Context) -> TokenBatch:
        """Rows for `count` problems, without rewards. Raises EnvironmentFault if there are none."""
        for policy in (self.policy, *(seat.policy for seat in context.seats.values())):
            policy.emitted.clear()
        episodes = self.episodes(method, count, context)
        return self.rows(method, episodes, count, self.policy.emitted, {self.policy.version}, context.seats)

    def episodes(self, method: CompleteTokenMethod, count: int, context: Context) -> list[Episode]:
        """What the experience makes of `count` problems, and what comes of a second look at them."""
        problems = method.curriculum.choose(self.pool, count, context.stream.split("problems"))
        for part in method.parts().values():
            if isinstance(part, Curriculum):
                self.policy.work.update(part.counts())
        episodes = method.experience.collect(problems, context)
        if method.second_look is not None:
            episodes = method.second_look.again(episodes, method.experience, context)
        return [each for episode in episodes for each in (episode, *episode.beside)]

    def rows(
        self, method: CompleteTokenMethod, episodes: Sequence[Episode], count: int, emitted: set[int],
        versions: Set[int], seats: Mapping[str, Seat] | None = None,
    ) -> TokenBatch:  # fmt: skip
        """The rows of these episodes. Raises EnvironmentFault if there are none.

        Args:
            emitted: hashes of all that the policy of these versions said.
            seats: of players, some of which may speak with other models.
        """
        lost = [e for e in episodes if e.stop is StopReason.FAULT]
        self._count_dropped(episodes, lost)
        episodes = [e for e in episodes if e.stop is not StopReason.FAULT and e.action_count]
        if not episodes:
            raise EnvironmentFault(
                f"None of {count} problems gave an episode with a sampled token: "
                + (f"the environment failed ({lost[0].info['fault']})." if lost else "every prompt fills the context.")
            )
        others = {name: s.policy for name, s in (seats or {}).items() if s.policy is not self.policy}
        if method.experience.samples:
            self._check_tokens([e for e in episodes if e.player not in others], emitted, versions)
            for name, policy in others.items():
                self._check_tokens([e for e in episodes if e.player == name], policy.emitted, {policy.version})
        pad, names = self.policy.tokenizer.pad_token_id, names_of(method, self.task)
        return to_batch(episodes, pad, method.experience.temperature, self.policy.device, names)

    def _count_dropped(self, episodes: Sequence[Episode], lost: Sequence[Episode]) -> None:
        """Episodes that will not be learned from, by reason; prompts that fill the context are said once."""
        full = [e for e in episodes if e.stop is StopReason.CONTEXT_OVERFLOW and not e.action_count]
        self.dropped.update({"lost_episodes": len(lost), "context_overflow": len(full)})
        if full and not self.told_overflow:
            self.told_overflow = True
            warnings.warn(
                f"{len(full)} of {len(episodes)} episodes were left out because their prompt fills the model's context "
                f"of {self.policy.context} tokens, the first for problem {full[0].problem.id!r}; later ones are "
                "counted in the metrics as context_overflow. Shorten the prompts or use a model with a longer context.",
                stacklevel=2,
            )

    def _check_tokens(self, episodes: Sequence[Episode], emitted: set[int], versions: Set[int]) -> None:
        """Invariant 3: what is trained on is what the sampler emitted, token for token."""
        for e in episodes:
            for s in e.segments:
                asked = s.version in versions and any(s.action_mask)
                if asked and any(hash(piece) not in emitted for piece in sampled_pieces(s)):
                    raise InvariantError(
                        f"A completion for problem {e.problem.id!r} has tokens that the sampler never emitted "
                        f"({s.text!r}): it was decoded and encoded again, or edited, after sampling."
                    )


def sampled_pieces(segment: Segment) -> list[tuple[int, ...]]:
    """The tokens of a segment as they were sampled: `info["pieces"]` has the lengths of several.

    Where another model finished what the policy began, `info["cut_from"]` has all that the policy had said.
    """
    begin, tokens = segment.info.get("begun", 0), segment.tokens
    if (said := segment.info.get("cut_from")) is not None:
        kept = sum(segment.action_mask)
        if said[:kept] != tokens[:kept]:
            return [()]
        begin, tokens = 0, said
    found = []
    for length in segment.info.get("pieces", (len(tokens) - begin,)):
        found.append(tuple(tokens[begin : begin + length]))
        begin += length
    return found
