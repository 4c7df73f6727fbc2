"""Gathering for steps that are still to come, from weights that will be older by then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.errors import EtudeError, InvariantError
from etude.core.slots import Context
from etude.experience.rollout import EVERYTHING, Start
from etude.experience.samplers import AtVersion, Samplers
from etude.experience.views import View
from etude.loops.gather import Gatherer
from etude.loops.states import below, join_tensors, split_tensors
from etude.policies import snapshots
from etude.policies.sampling import Sampling
from etude.policies.snapshots import Snapshot
from etude.runtime.checkpoints import load_tensors, save_tensors
from etude.runtime.errands import Errand
from etude.runtime.executors.roles import Answer

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod
    from etude.policies.language import LanguagePolicy

WEIGHTS = "ahead.safetensors"
"""Of a checkpoint: weights that rows of later steps are sampled from."""


@dataclass
class Flight:
    """What is gathered for one step, by parts that wait wherever they ask for episodes.

    Args:
        step: that will learn from it. finished: the steps that its weights had had.
        states: of all parts, before the first of them was asked anything for it.
    """

    step: int
    finished: int
    snapshot: Snapshot
    states: Any
    context: Context
    errand: Errand[list[Episode]]
    emitted: set[int] = field(default_factory=set)
    asked: tuple[Sequence[Start], Answer] | None = None

    def go_on(self, samplers: Samplers, episodes: Sequence[Episode] = ()) -> None:
        """Let the parts work until they ask for episodes, and samplers begin these."""
        with _emitting(self.context.policy, self.emitted):
            question = self.errand.go_on(episodes)
        if question is None:
            self.asked = None
            return
        starts, sampling, view = question[0]
        self.asked = starts, samplers.begin(starts, sampling, self.snapshot, view)

    def episodes(self, samplers: Samplers) -> list[Episode]:
        """All of them, once they are there."""
        policy: LanguagePolicy = self.context.policy
        while self.asked is not None:
            starts, answer = self.asked
            with _emitting(policy, self.emitted):
                found = samplers.finish(answer, starts, policy, self.snapshot)
            self.go_on(samplers, found)
        return self.errand.result()


class Owner(Protocol):
    """What a flight needs of its loop."""

    def plan(self, step: int) -> tuple[CompleteTokenMethod, Context]:
        """The method of a step, and what its parts may use for it."""
        ...

    def states(self) -> Any:
        """What all parts have learned and counted, anew."""
        ...

    def restore(self, states: Any) -> None:
        """Let all parts know that again."""
        ...


class _Asks:
    """Stands for samplers where parts of a flight ask for episodes."""

    def __init__(self, ask: Any) -> None:
        self.ask = ask

    def play(
        self, starts: Sequence[Start], context: Context, sampling: Sampling, view: View = EVERYTHING
    ) -> list[Episode]:  # fmt: skip
        """As `Samplers.play`, some time."""
        episodes: list[Episode] = self.ask((starts, sampling, view))
        return episodes


class Ahead:
    """Keeps as many steps in the air as the bound allows.

    Rows of step k are begun as soon as k - `bound` steps are finished, and sampled with the weights of then, whoever is
    how fast. So a run with a bound comes to the same numbers again, and can be gone on with.

    Args:
        bound: how many training steps rows may be older than the policy that learns from them; at least 1.
    """

    def __init__(self, samplers: Samplers, gatherer: Gatherer, bound: int, owner: Owner) -> None:
        self.samplers, self.gatherer, self.bound, self.owner = samplers, gatherer, bound, owner
        self.policy = gatherer.policy
        self.flights: dict[int, Flight] = {}
        self.trained: dict[int, int] = {}
        """Steps that were finished when the policy had these versions, of the last ones that rows were begun with."""

    @property
    def bytes(self) -> int:
        """What weights of earlier steps take in a checkpoint, at most."""
        return self.bound * sum(tensor.nbytes for tensor in snapshots.weights(self.policy).values())

    def reach(self, finished: int, steps: int) -> None:
        """Begin to gather for all steps for which that may begin now and has not.

        Where that fails, the parts know what they knew before, and the error says so.
        """
        for step in range(finished, min(finished + self.bound + 1, steps)):
            if step not in self.flights:
                states = self.owner.states()
                try:
                    self._begin(step, finished, states, self._now())
                except EtudeError as error:
                    self.owner.restore(states)
                    error.intact = True
                    raise

    def _begin(self, step: int, finished: int, states: Any, snapshot: Snapshot) -> None:
        """Begin to gather for a step, sampling from these weights."""
        method, context = self.owner.plan(step)
        self.trained[snapshot.version] = finished

        def gather(ask: Any) -> list[Episode]:
            context.samplers = _Asks(ask)
            return self.gatherer.episodes(method, method.begun, context)

        flight = self.flights[step] = Flight(step, finished, snapshot, states, context, Errand(gather))
        try:
            flight.go_on(self.samplers)
        except BaseException:
            self.done(step)
            raise

    def _now(self) -> Snapshot:
        """The present weights; a file that has them already serves again."""
        tensors = snapshots.weights(self.policy)
        version, mark = self.policy.version, snapshots.mark(tensors)
        same = (f.snapshot for f in self.flights.values() if (f.snapshot.version, f.snapshot.mark) == (version, mark))
        return next(same, None) or Snapshot(tensors, version)

    def older(self, step: int) -> tuple[Snapshot | None, float]:
        """The weights that a step's rows are sampled from, where they are not those of now; by how many steps."""
        flight = self.flights[step]
        other = flight.snapshot.version != self.policy.version
        return flight.snapshot if other else None, float(step - flight.finished)

    def rows(self, step: int, method: CompleteTokenMethod) -> TokenBatch:
        """The rows of a step, once they are there, but for those that are older than the bound."""
        flight = self.flights[step]
        episodes = flight.episodes(self.samplers)
        batch = self.gatherer.rows(method, episodes, method.begun, flight.emitted, flight.snapshot.version)
        return self.within(batch, step)

    def again(self, step: int, method: CompleteTokenMethod, count: int, context: Context) -> TokenBatch:
        """More rows for a step, from the same weights as its first."""
        flight = self.flights[step]
        context.samplers = AtVersion(self.samplers, flight.snapshot)
        with _emitting(self.policy, flight.emitted):
            episodes = self.gatherer.episodes(method, count, context)
        return self.within(
            self.gatherer.rows(method, episodes, count, flight.emitted, flight.snapshot.version), step
        )  # fmt: skip

    def within(self, batch: TokenBatch, step: int) -> TokenBatch:
        """Rows of which no token is older than the bound; others are counted. Raises InvariantError for none."""
        lag = self.lag(batch, step)
        kept = (lag <= self.bound) | ~batch.sampled
        self.gatherer.dropped.update({"too_old": len(batch) - int(kept.sum())})
        if not bool(kept.any()):
            raise InvariantError(
                f"All {len(batch)} rows for step {step} were sampled by weights that are more than {self.bound} "
                f"training steps older, the newest by {float(lag.min()):g}: nothing can be learned from them."
            )
        return batch if bool(kept.all()) else batch.rows(kept.nonzero()[:, 0])

    def lag(self, batch: TokenBatch, step: int) -> torch.Tensor:
        """[B] training steps between the weights of each row's oldest token and `step`; inf where nobody knows."""
        assert batch.version is not None
        known = torch.full_like(batch.version, torch.inf, dtype=torch.float64)
        for version, finished in self.trained.items():
            known[batch.version == version] = float(step - finished)
        return torch.where(batch.action_mask, known, 0.0).amax(1)

    def done(self, step: int) -> None:
        """A step has learned; files of weights that no other needs are gone."""
        flight = self.flights.pop(step, None)
        if flight is None:
            return
        flight.errand.close()
        if all(other.snapshot is not flight.snapshot for other in self.flights.values()):
            flight.snapshot.close()
        self.trained = {v: n for v, n in self.trained.items() if n >= flight.finished}

    def close(self) -> None:
        """Leave all that is in the air."""
        for step in [*self.flights]:
            self.done(step)

    # Checkpoints

    def save(self, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What begins all of it again: JSON values and tensors of states; weights are a file of their own."""
        kept = {f.snapshot.mark: f.snapshot for f in self.flights.values()}
        if kept:
            found = {f"{mark}.{k}": v for mark, snapshot in kept.items() for k, v in snapshot.tensors().items()}
            save_tensors(folder / WEIGHTS, found)
        flights = [
            {"step": f.step, "finished": f.finished, "version": f.snapshot.version, "mark": f.snapshot.mark,
             "states": f.states} for f in self.flights.values()
        ]  # fmt: skip
        told: tuple[dict[str, Any], dict[str, torch.Tensor]] = split_tensors({"flights": flights}, "ahead")
        told[0]["trained"] = [[version, finished] for version, finished in self.trained.items()]
        return told

    def load(self, folder: Path, data: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Begin again all that was in the air when `save` was called; parts know afterwards what they knew then."""
        self.close()
        self.trained = {int(version): finished for version, finished in data["trained"]}
        stored = load_tensors(folder / WEIGHTS) if data["flights"] else {}
        made = dict[str, Snapshot]()
        for flight in join_tensors({"flights": data["flights"]}, tensors)["flights"]:
            if (mark := flight["mark"]) not in made:
                found = below(stored, f"{mark}.")
                made[mark] = Snapshot({k: found[k] for k in snapshots.weights(self.policy)}, flight["version"])
            self.owner.restore(flight["states"])
            self._begin(flight["step"], flight["finished"], flight["states"], made[mark])


@contextmanager
def _emitting(policy: LanguagePolicy, emitted: set[int]) -> Iterator[None]:
    """What the policy emits goes into a set of one's own."""
    before, policy.emitted = policy.emitted, emitted
    try:
        yield
    finally:
        policy.emitted = before
