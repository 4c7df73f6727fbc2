"""Episodes played by samplers: roles with a copy of the policy, in this process or in others.

What an experience asks of the policy goes through `rollout`, and from there, where a run has samplers, to them. The
rest of a step stays where the parts are: curricula choose, experiences and second looks keep their states, rewards,
filters and learners see whole batches. Starts say where their random numbers come from, so who plays them changes none.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import EnvironmentFault, InvariantError
from etude.core.part import part_from_json
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experience.host import packed_fields
from etude.experience.rollout import EVERYTHING, Start, played
from etude.experience.seats import blank
from etude.experience.views import FullHistory, View
from etude.policies import snapshots
from etude.policies.sampling import Sampling
from etude.policies.snapshots import Snapshot
from etude.runtime.executors.local import Local
from etude.runtime.executors.roles import Answer, Before, Dispatch, Executor, dispatched
from etude.runtime.packing import Unpackable, packed, unpacked

if TYPE_CHECKING:
    from etude.policies.engines.remote import RemoteEngine
    from etude.policies.language import LanguagePolicy


class Sampler:
    """The role that plays episodes.

    Args:
        policy: what it samples from: the one that is trained, or another that is given its weights (`load`).
        engine: who samples the tokens, with the policy's weights; None: the policy itself.
    """

    def __init__(self, task: LanguageTask, policy: LanguagePolicy, engine: RemoteEngine | None = None) -> None:
        self.task, self.policy, self.engine = task, policy, engine

    @dispatched(Dispatch.BROADCAST)
    def load(self, file: str, mark: str) -> dict[str, str]:
        """Take the weights of a file. Raises InvariantError for others than those of this mark."""
        snapshots.take(self.policy, file, mark)
        return {"mark": mark}

    @dispatched(Dispatch.SPLIT)
    def play(
        self, rows: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any], version: int, mark: str,
        view: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """One episode for each row: an `id`, and where it begins.

        Args:
            view: what is seen of it, as JSON values; None: everything.

        Returns: the episodes under the same ids; the `mark` of the weights that they were sampled from; hashes of all
        that was `emitted`; and what `work` it was.

        Raises: InvariantError if the weights are not those of the mark.
        """
        policy = self.policy
        found = snapshots.mark(snapshots.weights(policy))
        if found != mark:
            raise InvariantError(
                f"A sampler holds weights with the mark {found}, and was asked for rows of version {version}, whose "
                f"weights have {mark}. Nothing was sampled."
            )
        policy.version = version
        policy.check_sampler()
        with _counted(policy) as (emitted, work):
            starts = [_start(unpacked(row["start"])) for row in rows]
            how = Sampling(**unpacked(sampling))
            seen = FullHistory() if view is None else part_from_json(view)
            assert isinstance(seen, View)
            engine = None if self.engine is None else self.engine.converse(policy, mark)
            episodes = played(starts, Context(self.task, policy, Stream(0)), how, seen, engine)
        told = [{"id": row["id"], **_told(e, self.task)} for row, e in zip(rows, episodes, strict=True)]
        return {"rows": told, "mark": found, "emitted": sorted(emitted), "work": dict(work)}


class Samplers:
    """Lets samplers play what a run's parts ask for.

    Args:
        executor: of the role `Sampler`, for `task`.
    """

    def __init__(self, executor: Executor, task: LanguageTask) -> None:
        self.executor, self.task = executor, task

    def play(
        self, starts: Sequence[Start], context: Context, sampling: Sampling, view: View = EVERYTHING
    ) -> list[Episode]:  # fmt: skip
        """One episode per start, in order, sampled from the policy of `context` as it is now.

        Raises: as `played`; WorkerError where samplers failed too often; InvariantError for rows that were not asked
        for, are there twice, or come from other weights.
        """
        policy: LanguagePolicy = context.policy
        mark = snapshots.mark(snapshots.weights(policy))
        asked = self._asked(starts, sampling, policy.version, mark, view)
        answer = self.executor.ask("play", Before("load", mark, lambda: _file(policy, mark), ("file",)), **asked)
        return _episodes(starts, answer, policy, mark)

    def begin(
        self, starts: Sequence[Start], sampling: Sampling, snapshot: Snapshot, view: View = EVERYTHING
    ) -> Answer:  # fmt: skip
        """Ask for the same without waiting, from these weights; what comes of it is for `finish`."""
        file, mark = str(snapshot.file), snapshot.mark
        made = Before("load", mark, lambda: nullcontext({"file": file, "mark": mark}), ("file",))
        return self.executor.begin("play", made, **self._asked(starts, sampling, snapshot.version, mark, view))

    def finish(
        self, answer: Answer, starts: Sequence[Start], policy: LanguagePolicy, snapshot: Snapshot
    ) -> list[Episode]:  # fmt: skip
        """The episodes that `begin` asked for. Raises what `play` does."""
        return _episodes(starts, answer.result(), policy, snapshot.mark)

    def _asked(
        self, starts: Sequence[Start], sampling: Sampling, version: int, mark: str, view: View
    ) -> dict[str, Any]:  # fmt: skip
        """What `Sampler.play` is called with."""
        rows = [{"id": i, "start": _sent(start, self.task)} for i, start in enumerate(starts)]
        how = packed(dataclasses.asdict(sampling), "sampling")
        seen = {} if view.whole else {"view": view.to_json()}
        return {"rows": rows, "sampling": how, "version": version, "mark": mark, **seen}

    def close(self) -> None:
        """End what was started for them."""
        self.executor.close()


def beside(task: LanguageTask, policy: LanguagePolicy) -> Samplers:
    """One sampler in this process with weights of its own, a copy of the policy's."""
    own = type(policy)(
        copy.deepcopy(policy.model), policy.tokenizer, share_prompts=policy.share_prompts, autocast=policy.autocast,
        shadow=policy.shadow,
    )  # fmt: skip
    return Samplers(Local(Sampler(task, own), apart=True), task)


class AtVersion:
    """Samplers with weights as they were: plays for a context whose policy has learned on since."""

    def __init__(self, samplers: Samplers, snapshot: Snapshot) -> None:
        self.samplers, self.snapshot = samplers, snapshot

    def play(
        self, starts: Sequence[Start], context: Context, sampling: Sampling, view: View = EVERYTHING
    ) -> list[Episode]:  # fmt: skip
        """As `Samplers.play`."""
        answer = self.samplers.begin(starts, sampling, self.snapshot, view)
        return self.samplers.finish(answer, starts, context.policy, self.snapshot)


def _episodes(
    starts: Sequence[Start], answer: Mapping[str, Any], policy: LanguagePolicy, mark: str
) -> list[Episode]:  # fmt: skip
    """What samplers answered to starts, counted as if the policy had said it itself."""
    if [row["id"] for row in answer["rows"]] != list(range(len(starts))):
        raise InvariantError(f"Samplers were asked for {len(starts)} rows, and answered with others.")
    if set(answer.get("mark", ())) - {mark}:
        raise InvariantError(f"Rows were sampled from weights {answer['mark']}, and {mark} were asked for.")
    for emitted, work in zip(answer.get("emitted", ()), answer.get("work", ())):
        policy.emitted.update(emitted)
        policy.work.update(work)
    return [_heard(start, row, policy) for start, row in zip(starts, answer["rows"], strict=True)]


@contextmanager
def _counted(policy: LanguagePolicy) -> Iterator[tuple[set[int], Counter[str]]]:
    """What is emitted, and the work that it is, apart from what the policy has counted before."""
    before = policy.emitted, policy.work
    policy.emitted, policy.work = set(), Counter()
    try:
        yield policy.emitted, policy.work
    finally:
        policy.emitted, policy.work = before


@contextmanager
def _file(policy: LanguagePolicy, mark: str) -> Iterator[dict[str, str]]:
    with snapshots.written(policy) as file:
        yield {"file": str(file), "mark": mark}


# Starts and episodes as plain data


def _sent(start: Start, task: LanguageTask) -> dict[str, Any]:
    """A start as JSON values. Of what is said again, `info` is left behind: nobody reads it."""
    facts = start._asdict() | {"draw": start.draw.key}
    try:
        facts["problem"] = packed_fields(start.problem, "problem")
        facts["segments"] = [packed_fields(s, "segment", ("info",)) for s in start.segments]
    except Unpackable as error:
        raise EnvironmentFault(_plain(task, start.problem, error)) from None
    return facts


def _start(facts: Mapping[str, Any]) -> Start:
    """Undo `_sent`."""
    segments = tuple(Segment(**s) for s in facts["segments"])
    told = {**facts, "problem": Problem(**facts["problem"]), "draw": Draw(facts["draw"]), "segments": segments}
    return Start(**told)


def _told(episode: Episode, task: LanguageTask) -> dict[str, Any]:
    """What happened in an episode, as JSON values."""
    try:
        said = [_segment(s) for s in episode.segments]
        told = {"segments": said, "stop": str(episode.stop), "info": packed(episode.info, "info")}
        return told | ({"views": _views(episode)} if episode.views else {})
    except Unpackable as error:
        raise EnvironmentFault(_plain(task, episode.problem, error)) from None


def _heard(start: Start, row: Mapping[str, Any], policy: LanguagePolicy) -> Episode:
    """Undo `_told`."""
    episode = blank(start)
    episode.segments = [_said(s, policy.device) for s in row["segments"]]
    episode.stop, episode.info = StopReason(row["stop"]), unpacked(row["info"])
    own = episode.segments
    episode.views = [
        [own[s] if isinstance(s, int) else _said(s, policy.device) for s in view] for view in row.get("views", ())
    ]
    return episode


def _views(episode: Episode) -> list[list[Any]]:
    """Its views: numbers of those of its segments that stand in them as they are, and what else is shown."""
    number = {id(s): n for n, s in enumerate(episode.segments)}
    return [[number[id(s)] if id(s) in number else _segment(s) for s in view] for view in episode.views]


def _segment(segment: Segment) -> dict[str, Any]:
    hidden = segment.info.get("hidden")
    info = {k: v for k, v in segment.info.items() if k != "hidden"}
    told = {**packed_fields(segment, "segment", ("info",)), "info": packed(info, "segment.info")}
    return told if hidden is None else {**told, "hidden": _bytes(hidden)}


def _said(told: Mapping[str, Any], device: torch.device) -> Segment:
    segment = Segment(**unpacked({k: v for k, v in told.items() if k != "hidden"}))
    if "hidden" in told:
        segment.info["hidden"] = _tensor(told["hidden"]).to(device)
    return segment


def _bytes(tensor: Tensor) -> list[Any]:
    flat = tensor.detach().cpu().contiguous()
    raw = flat.view(-1).view(torch.uint8).numpy().tobytes()
    return [str(flat.dtype).removeprefix("torch."), list(flat.shape), base64.b64encode(raw).decode()]


def _tensor(told: Sequence[Any]) -> Tensor:
    name, shape, text = told
    raw = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=getattr(torch, name)) if text else torch.empty(0)
    return raw.to(getattr(torch, name)).view(shape)


def _plain(task: LanguageTask, problem: Problem, error: Unpackable) -> str:
    return (
        f"Episodes of task {task.id or type(task).__name__!r} are played in processes of their own, which send plain "
        f"data, and for problem {problem.id!r} {error}: make it text, numbers, lists or dicts, or run --on local."
    )
