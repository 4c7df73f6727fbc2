"""The engine as a run sees it: it holds the weights that were asked for, and answers each row once.

lost        rows without an answer are asked again by number, once the engine is back and has the weights; after
            `restarts` of that the run stops, saved
no room     fewer rows at a time, then later; after `patience` a sentence with what to set
weights     of another mark than was asked for: sent again once, then refused; nothing is learned from such rows
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

from etude.core.draws import Draw
from etude.core.errors import ConfigError, EtudeError, InvariantError, WorkerError
from etude.policies import snapshots
from etude.policies.conversation import Conversation, Row
from etude.policies.engines.addresses import Address, check_host
from etude.policies.engines.dialects import Asked, Dialect, Greeting, Said, Turn
from etude.policies.engines.native import Native, sampled_weights
from etude.policies.engines.sglang import SGLang
from etude.policies.engines.vllm import VLLM
from etude.policies.engines.vllm_transfer import TransferringVLLM
from etude.policies.engines.wire import EngineGone, NoRoom, Refused, Wire, waited
from etude.policies.sampling import Completion, Sampling

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

DIALECTS: dict[str, type[Native] | type[VLLM] | type[SGLang]] = {"native": Native, "vllm": VLLM, "sglang": SGLang}
LOG = "etude.engines"


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long is waited for what.

    Args:
        answer: seconds for the rows of one request. back: until a lost engine must be there again. room: until one that
            is full must have room for a row. restarts: how often it may be lost in a run.
    """

    answer: float = 3600.0
    back: float = 120.0
    room: float = 120.0
    restarts: int = 3


class RemoteEngine:
    """An engine behind an address.

    Raises: ConfigError for an address that strangers reach; EngineGone where nobody answers; ConfigError for a version
    that is not known.
    """

    def __init__(self, address: Address, patience: Patience | None = None, public: bool = False) -> None:
        if not public:
            check_host(address.host)
        self.address, self.patience = address, patience or Patience()
        self.dialect = self._dialect(Wire(address, self.patience.answer))
        self.greeting: Greeting = self.dialect.greet()
        self.faults = 0
        self._sent: str | None = None
        self._marks = ("", "")

    def _dialect(self, wire: Wire) -> Dialect:
        if self.address.transport != "files":
            return TransferringVLLM(wire, self.address.transport)
        return DIALECTS[self.address.kind](wire)

    def converse(self, policy: LanguagePolicy, mark: str) -> Conversation:
        """Rows of this policy, whose weights have a mark (`snapshots.mark`), which the engine has from now on.

        Raises: ConfigError for a policy that it cannot sample from; what `hold` raises.
        """
        self._check(policy)
        if not policy.has_adapter:
            wanted = mark
        else:  # it samples from the adapter folded in, whose weights have another mark
            if self._marks[0] != mark:
                self._marks = mark, snapshots.mark(sampled_weights(policy))
            wanted = self._marks[1]
        self._until_held(policy, wanted)
        return RemoteConversation(policy, self, wanted)

    def _check(self, policy: LanguagePolicy) -> None:
        if policy.voices > 1:
            raise ConfigError("This policy has several voices for each word, which no engine has: leave out --engine.")
        theirs = self.greeting.context
        if theirs is not None and theirs < policy.context < 1 << 30:
            raise ConfigError(
                f"The engine at {self.address.url} attends to {theirs} tokens and the policy to {policy.context}: "
                "start it with its model's whole context."
            )

    # Weights

    def hold(self, policy: LanguagePolicy, mark: str) -> None:
        """Let the engine have the policy's weights, unless it does.

        Raises: InvariantError if it says afterwards that it has others, or that what it was sent is torn; WorkerError
        where there is no room to write them; EngineGone.
        """
        if self._sent == mark and self.dialect.held() in (None, mark):
            return
        with _room_on_disk(self.address):
            self.dialect.pause()
            try:
                self.dialect.give(policy, mark)
            except Refused as error:
                raise InvariantError(f"{error} Its weights are not those of version {policy.version}.") from None
            finally:
                self.dialect.resume()
        if (found := self.dialect.held()) not in (None, mark):
            raise InvariantError(
                f"The engine at {self.address.url} was given weights with the mark {mark}, and says it has {found}: "
                "somebody else gives it weights, too."
            )
        self._sent = mark

    def _until_held(self, policy: LanguagePolicy, mark: str) -> None:
        """`hold`, as often as the engine is lost over it."""
        while True:
            try:
                return self.hold(policy, mark)
            except EngineGone as error:
                self._lost(error)

    # Rows

    def complete(self, rows: Sequence[Asked], turn: Turn, policy: LanguagePolicy, mark: str) -> Said:
        """Go on with all rows; each has one answer, however often it was asked for."""
        found, again = Said({}), False
        until = time.monotonic() + self.patience.room
        while left := [row for row in rows if row.number not in found.completions]:
            try:
                said = self.dialect.complete(left, turn)
            except EngineGone as error:
                self._lost(error)
                self._until_held(policy, mark)
                continue
            except NoRoom as error:
                self._wait_for_room(error, len(left), until)
                continue
            if said.marks - {mark}:
                if again:
                    raise InvariantError(
                        f"Rows were sampled from weights {sorted(said.marks)}, and {mark} were asked for: the weights "
                        f"of the engine at {self.address.url} are late, or somebody else gives it others. Nothing was "
                        "learned from these rows."
                    )
                again, self._sent = True, None
                self._until_held(policy, mark)
                continue
            if not said.completions:
                self._lost(EngineGone(f"The engine at {self.address.url} ended all rows before they were done."))
            found.completions.update(said.completions)
            for name, count in said.work.items():
                found.work[name] = found.work.get(name, 0) + count
            until = time.monotonic() + self.patience.room
        return found

    def _lost(self, error: EngineGone) -> None:
        """Wait until the engine is back. Raises WorkerError where it is not in time, or was lost too often."""
        self.faults += 1
        if self.faults > self.patience.restarts:
            raise WorkerError(
                f"The engine at {self.address.url} was lost {self.faults} times; the last time: {error} It is waited "
                f"for at most {self.patience.restarts} times."
            )
        logging.getLogger(LOG).warning("%s Rows without an answer are asked again once it is back.", error)
        until, pause = time.monotonic() + self.patience.back, 0.1
        while True:
            try:
                self.greeting, self._sent = self.dialect.greet(), None
                return
            except EngineGone as gone:
                if not waited(until, pause):
                    raise WorkerError(
                        f"{gone} It was waited for {self.patience.back:g} seconds: start it again with "
                        "`etude engine start`, then go on with the run."
                    ) from None
                pause = min(2.0, 2 * pause)

    def _wait_for_room(self, error: NoRoom, rows: int, until: float) -> None:
        """Ask for less at a time, then wait. Raises WorkerError once that takes too long."""
        asked = min(rows, self.dialect.together)
        self.dialect.together = max(1, asked // 2)
        if not waited(until, error.after if asked == 1 else 0.05):
            raise WorkerError(
                f"{error} Even a row at a time found no room for {self.patience.room:g} seconds: start the engine with "
                f"a larger {self.dialect.setting}, or ask for shorter answers (experience.max_tokens)."
            )


class RemoteConversation(Conversation):
    """A policy's rows, which an engine goes on with.

    Args:
        mark: of the weights that they are sampled from.
    """

    def __init__(self, policy: LanguagePolicy, engine: RemoteEngine, mark: str) -> None:
        super().__init__(policy)
        self.engine, self.mark, self.session = engine, mark, uuid.uuid4().hex[:12]

    def following(self, rows: Sequence[int], room: int) -> Tensor:
        """Raises ConfigError: no engine sends logits."""
        raise ConfigError("A part asks what could come after rows, and no engine sends logits: leave out --engine.")

    def _sample(
        self, asked: list[Row], sampling: Sampling, draws: Sequence[Draw], begun: Sequence[int], last: bool
    ) -> list[Completion]:
        if why := self.engine.dialect.lacks(sampling):
            raise ConfigError(f"The engine at {self.engine.address.url} cannot sample so: {why}. Leave out --engine.")
        handles = {id(row): number for number, row in self._rows.items()}
        rows = [
            Asked(handles[id(row)], row.tokens, draw.key, first, self._room(row, sampling, first))
            for row, draw, first in zip(asked, draws, begun or [0] * len(asked), strict=True)
        ]
        own = {row.number for row in rows}
        others = [number for number in self._rows if number not in own]
        turn = Turn(sampling, self.policy.end_ids, self.policy.context, last, self.session, others)
        said = self.engine.complete(rows, turn, self.policy, self.mark)
        self.policy.work.update(said.work)
        return [said.completions[row.number] for row in rows]

    def _room(self, row: Row, sampling: Sampling, begun: int) -> int:
        """Tokens that fit behind a row."""
        turn = sampling.max_tokens - begun if sampling.whole_turns else sampling.max_tokens
        return min(turn, self.policy.context - len(row.tokens))

    def _hold(self, rows: list[Row], completions: list[Completion]) -> None:
        for row, completion in zip(rows, completions):
            row.tokens += completion.tokens


@contextmanager
def _room_on_disk(address: Address) -> Iterator[None]:
    """Weights that find no room where they are written are a sentence."""
    try:
        yield
    except EtudeError:
        raise
    except Exception as error:  # safetensors' own is not an OSError
        if getattr(error, "errno", None) != errno.ENOSPC and f"os error {errno.ENOSPC}" not in str(error):
            raise
        raise WorkerError(
            f"There is no room to write the weights for the engine at {address.url}: make some in /dev/shm, or set "
            "TMPDIR to a folder that the engine sees, too."
        ) from None
