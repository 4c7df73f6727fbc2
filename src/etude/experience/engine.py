"""Our own engine for others: conversations over a policy's weights, which are replaced from outside.

One request is worked on at a time. `etude.experience.engine_server` puts it behind the routes of HTTP.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from etude.core.draws import Draw
from etude.core.errors import ConfigError, InvariantError, WorkerError
from etude.experience.lines import Lines
from etude.policies import snapshots
from etude.policies.sampling import Completion, Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from etude.policies.language import LanguagePolicy

SESSIONS = 8
"""Conversations that are kept; of an older one the rows are read anew."""
STARTED = "default"
"""The name of weights that nobody gave."""


class Full(WorkerError):
    """There is no room for so many rows."""


class Request(NamedTuple):
    """Rows to go on with, as `Lines.sample` takes them.

    Args:
        views: all tokens of each row, by number. draws, begun: of each of them. others: rows of the session that stay
            open beside them. session: '' is one of its own.
    """

    views: Mapping[int, list[int]]
    sampling: Sampling
    draws: Sequence[Draw]
    begun: Sequence[int]
    last: bool = True
    others: Sequence[int] = ()
    session: str = ""


class Answer(NamedTuple):
    """Completions in the order of the rows, what it was to read them, and the mark of the weights."""

    completions: list[Completion]
    work: dict[str, int]
    mark: str


class ServedEngine:
    """A policy that others sample from and give weights to.

    Args:
        rows: of one request at most; None: as many as are asked for.
        wait: seconds that a request waits for the engine to go on.
    """

    def __init__(self, policy: LanguagePolicy, rows: int | None = None, wait: float = 600.0) -> None:
        self.policy, self.rows, self.wait = policy, rows, wait
        self.name = STARTED
        self._working, self._going = threading.Lock(), threading.Event()
        self._going.set()
        self._sessions: OrderedDict[str, Lines] = OrderedDict()
        self._mark: tuple[object, str] = (None, "")
        self._phase = "none"

    # Rows

    def complete(self, request: Request) -> Answer:
        """Raises Full for too many rows, ConfigError for what cannot be sampled from."""
        if self.rows is not None and len(request.views) > self.rows:
            raise Full(f"There is room for {self.rows} rows at a time (--rows), got {len(request.views)}.")
        if not self._going.wait(self.wait):
            raise Full(f"The engine has been paused for {self.wait:g} seconds, and nobody let it go on.")
        with self._working:
            policy = self.policy
            policy.work, policy.emitted = Counter(), set()
            try:
                said = self._lines(request.session).sample(
                    request.views, request.sampling, request.draws, request.begun, request.last, request.others
                )
            except (MemoryError, RuntimeError) as error:
                self._sessions.pop(request.session, None)
                if isinstance(error, MemoryError) or "memory" in str(error):
                    raise Full(f"There is no memory for {len(request.views)} rows: {error}") from None
                raise
            except BaseException:
                self._sessions.pop(request.session, None)
                raise
            work = {name: count for name, count in policy.work.items() if name != "sampled_tokens"}
            return Answer(said, work, self.mark)

    def _lines(self, session: str) -> Lines:
        """The rows of a session, or none yet."""
        if not session:
            return Lines(self.policy.converse())
        if session not in self._sessions:
            self._sessions[session] = Lines(self.policy.converse())
        self._sessions.move_to_end(session)
        while len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        return self._sessions[session]

    # Weights

    @property
    def mark(self) -> str:
        """Of the weights that it has, all their bits."""
        key = self.policy.version, self.policy.loads
        if self._mark[0] != key:
            self._mark = key, snapshots.mark(snapshots.weights(self.policy))
        return self._mark[1]

    def pause(self) -> None:
        """Begin nothing from now on, and wait for what is being worked on."""
        self._going.clear()
        with self._working:
            return

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    @property
    def paused(self) -> bool:
        """Whether nothing is begun."""
        return not self._going.is_set()

    def take_file(self, file: str, mark: str) -> None:
        """Take the weights of a file. Raises InvariantError for others than those of this mark."""
        with self._replacing():
            snapshots.take(self.policy, file, mark)

    def take_folder(self, folder: str) -> None:
        """Take the weights of a Hugging Face folder. Raises InvariantError if they cannot be read or do not fit."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        theirs: dict[str, Tensor] = {}
        try:
            for path in sorted(Path(folder).glob("*.safetensors")):
                theirs |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise InvariantError(f"The weights in {folder} cannot be read ({type(error).__name__}: {error}).") from None
        mine = snapshots.weights(self.policy)
        other = [*(mine.keys() ^ theirs), *(k for k, p in mine.items() if k in theirs and theirs[k].shape != p.shape)]
        if other:
            raise InvariantError(
                f"The weights in {folder} are another model's: {min(other)} is missing, too many or of another shape."
            )
        with self._replacing():
            snapshots.put(mine, theirs)
            self.policy.loads += 1

    @contextmanager
    def _replacing(self) -> Iterator[None]:
        with self._working:
            self._sessions.clear()
            yield

    # The four phases of an update

    def phase(self, name: str, after: Sequence[str], do: Callable[[], None] | None = None) -> None:
        """Go on to a phase. Raises ConfigError unless one of `after` was the last; a failure ends the update."""
        if self._phase not in after:
            raise ConfigError(f"An update of weights cannot {name} now: the last that it did was {self._phase!r}.")
        try:
            if do is not None:
                do()
        except BaseException:
            self._phase = "init"
            raise
        self._phase = name
