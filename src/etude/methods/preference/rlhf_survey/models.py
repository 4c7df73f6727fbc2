"""Models of rewards beside the policy, and what was asked to teach them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative
from etude.core.learners import Apart, Learning
from etude.core.population import Population
from etude.core.step_slots import Network
from etude.learners.q import action_sizes
from etude.methods.preference.rlhf_survey.feedback import Answers, Comparison, Feedback
from etude.methods.preference.rlhf_survey.queries import MostDisagreed, Queries
from etude.methods.preference.rlhf_survey.teachers import SimulatedTeacher, Teacher
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP, Linear, Plain, networks_in

if TYPE_CHECKING:
    from gymnasium import Space

HELD = 10
"""One question in so many is held out."""
OVERFIT = (1.1, 1.5)
"""Held-out losses that are fine, in units of those learned from (arXiv:1706.03741, 2.2.3)."""
STRONGER = 1.2
"""What weights are held down by more, or less, where they are not."""


class RewardModels(Plain):
    """M models of every member: observations [P, N, D] and actions [P, N, A] in units, or choices, to [P, M, N].

    Each says tanh of what its last layer does, so that rewards lie in [-1, 1] (arXiv:2106.05091, B).
    """

    def __init__(self, body: nn.Module, head: nn.Module, choices: int) -> None:
        super().__init__()
        self.body, self.head, self.choices = body, head, choices

    def forward(self, seen: Tensor, actions: Tensor) -> Tensor:
        done = actions
        if self.choices:
            done = nn.functional.one_hot(actions[..., 0].long(), self.choices).to(seen)
        x, count = torch.cat([seen, done], -1), networks_in(self.head) // len(seen)
        x = x[:, None].expand(-1, count, -1, -1).flatten(0, 1)
        found: Tensor = torch.tanh(self.head(self.body(x))).view(len(seen), count, -1)
        return found


class Segments(NamedTuple):
    """N segments of L steps of each member, [P, N, L, ...]; `live` is 0 where no step was, after an episode's end."""

    observations: Tensor
    actions: Tensor
    paid: Tensor
    live: Tensor

    def pick(self, places: Tensor) -> Segments:
        """Those at places [P, K, C], as [P, K, C, L, ...]."""
        flat = places.flatten(1)
        found = (x.take_along_dim(flat.view(*flat.shape, *[1] * (x.dim() - 2)), 1) for x in self)
        return Segments(*(x.unflatten(1, places.shape[1:]) for x in found))


class PreferenceModels(Apart, abstract=True):
    """Models of what people want, learned from answers about segments of what the policy did (arXiv:1706.03741).

        loss = sum over models of (-log likelihood of answers) + decay |weights|^2

    in sessions, until there are `labels` answers: session k asks first / (1 + k / slow) questions, at least 1. The
    reward of a step is the mean of what the models say of it. Every tenth question is held out; where its loss is less
    than 1.1 times what those learned from have, weights are held down less, where it is above 1.5 times that, more.

    Args:
        count: M. network: of each.
        feedback, teacher, queries: what is asked, who answers, which of the questions that could be.
        length: L, steps of a segment.
        labels: questions in all. first, slow: how many are asked when.
        pool: times as many questions as are asked, of which they are chosen.
        batch: questions in a step of the models.
        decay: of the weights, at first.

    Its state has the questions and their answers. Shapes: observations [P, N, D], actions [P, N, A].
    """

    count: Count = 3
    network: Network = MLP(hidden=(64, 64), activation="leaky-relu")
    feedback: Feedback = Comparison()
    teacher: Teacher = SimulatedTeacher()
    queries: Queries = MostDisagreed()
    length: Count = 25
    labels: Count = 300
    first: Count = 40
    slow: Count = 5
    pool: Count = 10
    batch: Count = 32
    decay: NonNegative = 1e-5
    learning: Learning = Learning(Adam(lr=1e-3))

    def initial_state(self) -> dict[str, Any]:
        return {"sessions": 0, "steps": 0, "asked": 0}

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> RewardModels:
        if len(shape) != 1:
            raise ConfigError(f"{type(self).__name__} reads vectors, and observations are images {list(shape)}.")
        choices, size = action_sizes(actions)
        each = population.each(self.count, "models of rewards")
        body, width = self.network.build((shape[0] + (choices or size),), each, "model")
        network = RewardModels(body, Linear(each, "model.head", width, 1, start=FanIn()), choices)
        self.made.update(population=population, network=network)
        return network

    # What is asked

    @property
    def wanted(self) -> int:
        """How many questions the next session asks."""
        many = max(1, round(self.first / (1 + int(self.state["sessions"]) / self.slow)))
        return min(many, self.labels - int(self.state["asked"]))

    @property
    def drawn(self) -> int:
        """Segments that are drawn for it."""
        return self.wanted * (self.pool if self.queries.wide else 1) * self.feedback.segments

    def numbers(self, purpose: str, *shape: int) -> Tensor:
        """[P, *shape] uniform ones of each member's own, in this session."""

        def one(generator: Generator) -> Tensor:
            return torch.rand(*shape, generator=generator)

        found: Tensor = self.made["population"].draw("preferences", purpose, self.state["sessions"], of=one)
        return found

    @torch.no_grad()
    def ask(self, segments: Segments, network: nn.Module) -> None:
        """Choose questions about `drawn` segments, have them answered, and keep that."""
        self._hold_down(network)
        count, shown, state = self.wanted, self.feedback.segments, self.state
        places = torch.arange(segments.live.shape[1], device=segments.live.device).view(-1, shown)
        questions = segments.pick(places.expand(len(segments.live), -1, -1))
        if self.queries.wide:
            chances = self._chances(questions, network)
            vectors = torch.cat([questions.observations, questions.actions], -1).flatten(2)
            places = self.queries.pick(chances, vectors, count)
            questions = Segments(
                *(x.take_along_dim(places.view(*places.shape, *[1] * (x.dim() - 2)), 1) for x in questions)
            )
        options = self.feedback.worths(questions.paid).shape[-1]
        numbers = self.numbers("answers", count, self._rounds, options + 2).to(questions.paid.device)
        answers = self.teacher.answer(self.feedback, questions.paid, questions.live, numbers)
        new = {"observations": questions.observations, "actions": questions.actions, "live": questions.live}
        new |= {"chosen": answers.chosen, "among": answers.among}
        for name, x in new.items():
            state[name] = torch.cat([state[name], x], 1) if name in state else x
        state["asked"] += count
        state["sessions"] += 1

    @property
    def _rounds(self) -> int:
        """S, how many choices an answer makes at most."""
        return max(1, self.feedback.segments - 1)

    def _chances(self, questions: Segments, network: nn.Module) -> Tensor:
        """[P, M, Q, O] of each option, by each model."""
        said = self._said(questions.observations, questions.actions, questions.live, network)
        worths = self.feedback.worths(said)
        found: Tensor = self.feedback.logp(worths, torch.ones_like(worths)[..., None, :])[..., 0, :].exp()
        return found

    def _said(self, observations: Tensor, actions: Tensor, live: Tensor, network: nn.Module) -> Tensor:
        """What the models say of steps [P, K, C, L, ...]: [P, M, K, C, L], 0 where no step was."""
        shape = live.shape[1:]
        said: Tensor = network(observations.flatten(1, 3), actions.flatten(1, 3))
        found: Tensor = said.unflatten(2, shape) * live[:, None]
        return found

    # What is learned

    def unlikely(self, network: nn.Module, places: Tensor) -> Tensor:
        """-log likelihood of the answers at `places` [P, K], of each model: [P, M, K]."""
        kept = (self.state[name] for name in ("observations", "actions", "live", "chosen", "among"))
        rows = (x.take_along_dim(places.view(*places.shape, *[1] * (x.dim() - 2)), 1) for x in kept)
        observations, actions, live, chosen, among = rows
        answers = Answers(chosen[:, None], among[:, None])
        return self.feedback.unlikely(self._said(observations, actions, live, network), answers)

    def minimised(self, network: nn.Module) -> Tensor:
        """[P] on some of the answers; 0 where there are none yet."""
        weights = self._weights(network)
        learned = self._places(held=False)
        if not len(learned):
            return 0.0 * weights
        count, self.state["steps"] = min(self.batch, len(learned)), self.state["steps"] + 1

        def one(generator: Generator) -> Tensor:
            return torch.randperm(len(learned), generator=generator)[:count]

        drawn = self.made["population"].draw("preferences", "learn", self.state["steps"], of=one)
        decay: Tensor | float = self.state.get("decay", self.decay)
        return self.unlikely(network, learned[drawn].to(weights.device)).mean(2).sum(1) + decay * weights

    def _places(self, held: bool) -> Tensor:
        """Of the questions that are held out, or of those that are not."""
        every = torch.arange(self.state["asked"])
        return every[(every % HELD == HELD - 1) == held]

    def _weights(self, network: nn.Module) -> Tensor:
        """[P] the sum of squares of all weights of a member's models."""
        each = torch.stack([p.square().flatten(1).sum(1) for p in network.parameters()]).sum(0)
        return each.view(self.made["population"].size, -1).sum(1)

    def _hold_down(self, network: nn.Module) -> None:
        """Change `decay` by how much better the models know what they learned from."""
        learned, held = self._places(held=False), self._places(held=True)
        if not len(held):
            return
        size, device = self.made["population"].size, self.state["live"].device
        here, there = (self.unlikely(network, x.to(device).expand(size, -1)).mean((1, 2)) for x in (learned, held))
        low, high = OVERFIT
        ratio = there / here.clamp(min=1e-12)
        factor = torch.where(ratio > high, STRONGER, torch.where(ratio < low, 1 / STRONGER, 1.0)).to(ratio)
        self.state["decay"] = self.state.get("decay", self.decay * torch.ones_like(ratio)) * factor

    def agreement(self, network: nn.Module) -> Tensor:
        """[P] share of all answers whose most chosen option the models' mean reward says is best."""
        observations, actions, live = (self.state[name] for name in ("observations", "actions", "live"))
        worths = self.feedback.worths(self._said(observations, actions, live, network).mean(1))
        chosen, among = self.state["chosen"], self.state["among"]
        best = worths[..., None, :].masked_fill(among == 0, -torch.inf).argmax(-1)
        right = chosen.take_along_dim(best[..., None], -1)[..., 0] >= chosen.amax(-1)
        said = chosen.sum(-1) > 0
        found: Tensor = (right & said).sum((1, 2)) / said.sum((1, 2)).clamp(min=1)
        return found
