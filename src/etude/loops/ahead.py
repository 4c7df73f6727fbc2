"""Gathering for steps that are still to come, from weights that will be older by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from etude.loops.flight import Flight, emitting
from etude.loops.gather import Gatherer
from etude.loops.states import below, join_tensors, split_tensors
from etude.policies import snapshots
from etude.policies.sampling import Sampling
from etude.policies.snapshots import Snapshot
from etude.runtime.checkpoints import load_tensors, save_tensors
from etude.runtime.errands import Errand

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod

WEIGHTS = "ahead.safetensors"
"""Of a checkpoint: weights that rows of later steps are sampled from."""


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

        Completions of steps that are under way go on with the present weights, where they wait for them. Where that
        fails, the parts know what they knew before, and the error says so.
        """
        try:
            self._renew(finished)
        except EtudeError as error:
            error.intact = True
            raise
        for step in range(finished, min(finished + self.bound + 1, steps)):
            if step not in self.flights:
                states = self.owner.states()
                try:
                    self._begin(step, finished, states, self._now())
                except EtudeError as error:
                    self.owner.restore(states)
                    error.intact = True
                    raise

    def _renew(self, finished: int) -> None:
        for flight in self.flights.values():
            if flight.finished < finished < flight.step and flight.asked is not None and flight.asked.waiting:
                snapshot = self._now()
                self.trained[snapshot.version] = finished
                flight.renew(self.samplers, finished, snapshot)

    def _begin(self, step: int, finished: int, states: Any, snapshot: Snapshot) -> None:
        """Begin to gather for a step, sampling from these weights."""
        method, context = self.owner.plan(step)
        self.trained[snapshot.version] = finished

        def gather(ask: Any) -> list[Episode]:
            context.samplers = _Asks(ask)
            return self.gatherer.episodes(method, method.begun, context)

        flight = self.flights[step] = Flight(
            step, finished, snapshot, states, context, Errand(gather), method.renew_after
        )
        try:
            flight.begin(self.samplers)
        except BaseException:
            self.done(step)
            raise

    def _now(self) -> Snapshot:
        """The present weights; a file that has them already serves again."""
        tensors = snapshots.weights(self.policy)
        version, mark = self.policy.version, snapshots.mark(tensors)
        kept = (snapshot for flight in self.flights.values() for snapshot in flight.snapshots.values())
        same = (each for each in kept if (each.version, each.mark) == (version, mark))
        return next(same, None) or Snapshot(tensors, version)

    def older(self, step: int) -> list[Snapshot]:
        """The weights that a step's rows are sampled from, where they are not those of now."""
        found = {s.version: s for s in self.flights[step].snapshots.values() if s.version != self.policy.version}
        return [*found.values()]

    def ages(self, step: int) -> dict[str, float]:
        """`lag`: steps from the weights that a step's rows were begun with to those of now; `renewed`: see there."""
        flight = self.flights[step]
        found = {"lag": float(step - flight.finished)}
        return found | ({"renewed": flight.share} if flight.after else {})

    def rows(self, step: int, method: CompleteTokenMethod) -> TokenBatch:
        """The rows of a step, once they are there, but for those that are older than the bound."""
        flight = self.flights[step]
        episodes = flight.episodes(self.samplers)
        batch = self.gatherer.rows(method, episodes, method.begun, flight.emitted, flight.versions)
        flight.count(batch)
        return self.within(batch, step)

    def again(self, step: int, method: CompleteTokenMethod, count: int, context: Context) -> TokenBatch:
        """More rows for a step, from the same weights as its first."""
        flight = self.flights[step]
        context.samplers = AtVersion(self.samplers, flight.snapshot)
        with emitting(self.policy, flight.emitted):
            episodes = self.gatherer.episodes(method, count, context)
        return self.within(
            self.gatherer.rows(method, episodes, count, flight.emitted, flight.versions), step
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
        kept = {id(snapshot) for other in self.flights.values() for snapshot in other.snapshots.values()}
        for snapshot in flight.snapshots.values():
            if id(snapshot) not in kept:
                snapshot.close()
        self.trained = {v: n for v, n in self.trained.items() if n >= flight.finished}

    def close(self) -> None:
        """Leave all that is in the air."""
        for step in [*self.flights]:
            self.done(step)

    # Checkpoints

    def save(self, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What begins all of it again: JSON values and tensors of states; weights are a file of their own."""
        kept = {s.mark: s for f in self.flights.values() for s in f.snapshots.values()}
        if kept:
            found = {f"{mark}.{k}": v for mark, snapshot in kept.items() for k, v in snapshot.tensors().items()}
            save_tensors(folder / WEIGHTS, found)
        flights = [
            {"step": f.step, "weights": [[n, s.version, s.mark] for n, s in f.snapshots.items()], "states": f.states}
            for f in self.flights.values()
        ]
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
            for _, version, mark in flight["weights"]:
                if mark not in made:
                    found = below(stored, f"{mark}.")
                    made[mark] = Snapshot({k: found[k] for k in snapshots.weights(self.policy)}, version)
            (finished, _, first), *later = flight["weights"]
            self.owner.restore(flight["states"])
            self._begin(flight["step"], finished, flight["states"], made[first])
            for finished, _, mark in later:
                self.flights[flight["step"]].renew(self.samplers, finished, made[mark])
