"""The loop of every token method: curriculum, experience, rewards, filters, advantages, optimizer steps."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from etude.core.batches import Episode, Problem, StopReason, TokenBatch
from etude.core.errors import EnvironmentFault, InvariantError
from etude.core.loop import StepReport
from etude.core.method import Method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experience.chat import opening
from etude.experience.rows import concatenate, to_batch
from etude.loops.differences import METRIC, Differences
from etude.loops.language_report import describe, record
from etude.loops.recorded import recorded_entropies, recorded_hidden
from etude.loops.states import join_tensors, split_tensors
from etude.loops.update import Updater, evaluate_all, reference_all, values_all
from etude.policies.language import LanguagePolicy
from etude.rewards.scoring import NO_REWARD, score
from etude.runtime.checkpoints import load_json, load_tensors, save_json, save_tensors

MICRO_TOKENS = 8192


class LanguageLoop:
    """Trains a token method on a language task.

    Args:
        method: what to do; bound here, so its parts' states are this run's.
        task: what to get good at.
        policy: the language model.
        seed: all randomness comes from it.
        steps: training steps in total (for schedules and stages).
        micro_tokens: padded tokens per micro-batch; changes memory and speed, not results.
    """

    headline = "accuracy"

    def __init__(
        self, method: Method, task: LanguageTask, policy: LanguagePolicy, *, seed: int, steps: int,
        pool: Sequence[Any] | None = None, micro_tokens: int = MICRO_TOKENS,
    ) -> None:  # fmt: skip
        self.task, self.policy, self.steps, self.seed = task, policy, steps, seed
        self.finished = 0
        self.stages = [(s.until(), s.apply(method).bind()) for s in method.stages] or [(1.0, method.bind())]
        self.pool = self._fitting(task.problems("train") if pool is None else pool)
        self.stream = Stream(seed)
        if any("values" in m.needs() for _, m in self.stages):
            policy.add_value_head()  # before the optimizer is built, even if only a later stage needs it
        self.updater = Updater(policy, self.method, steps, micro_tokens, self._limit())
        self.differences = Differences()
        self.dropped: Counter[str] = Counter()
        self.told_overflow = False
        self.needs_reference = any("reference_logp" in m.needs() for _, m in self.stages)
        if self.needs_reference:
            policy.keep_reference()

    @property
    def method(self) -> Method:
        """The method of the current stage."""
        share = self.finished / max(1, self.steps)
        return next((m for until, m in self.stages if share < until), self.stages[-1][1])

    def _limit(self) -> int:
        return getattr(self.method.experience, "max_tokens", None) or self.task.max_tokens

    def _fitting(self, pool: Sequence[Problem]) -> Sequence[Problem]:
        """The problems whose prompt leaves room for a completion, for tasks that say what to do with the others.

        Pools that are made on demand are not read in advance: there a prompt that fills the context is counted and
        left out when it comes (faults row 17).
        """
        if not hasattr(self.task, "on_long_prompt"):
            return pool
        from etude.tasks.language.files import fit_prompts

        def size(problem: Problem) -> int:
            segments = self.task.environment().reset(problem, 0)
            return sum(map(len, opening(segments, self.policy, self.task.add_bos)))

        limit = self.task.prompt_limit or self.policy.context - self._limit()
        kept, sentence = fit_prompts(pool, size, max(1, min(limit, self.policy.context - 1)), self.task.on_long_prompt)
        if sentence:
            warnings.warn(sentence, stacklevel=3)
        return kept

    # One step

    def step(self) -> StepReport:
        """Gather a batch, learn from it, tell the parts what happened."""
        method, stream = self.method, self.stream.split("step", self.finished)
        begun = time.monotonic()
        self.policy.check_sampler()
        self.dropped.clear()
        assessed, batch = self._gather(method, stream)
        gathered = time.monotonic()
        metrics = describe(assessed, self.task, method.experience.samples, self.dropped)
        if method.experience.samples:
            metrics[METRIC] = self.differences.watch(assessed, method.rewards)
        if len(batch):
            batch = self._credit(method, batch)
            metrics["zero_advantage"] = float((batch.advantages == 0).all(1).float().mean())
            metrics |= self.updater.run(method, batch, self.finished, stream)
            for part in method.parts().values():
                part.after_update(batch)
        self.finished += 1
        self._refresh_reference(method)
        ended = time.monotonic()
        tokens = int(batch.attention_mask.sum())
        metrics["tokens_per_second"] = tokens / max(ended - begun, 1e-9)
        metrics["seconds/experience"], metrics["seconds/update"] = gathered - begun, ended - gathered
        return StepReport(metrics, [record(e, batch, i) for i, e in enumerate(batch.episodes)])

    def _gather(self, method: Method, stream: Stream) -> tuple[list[TokenBatch], TokenBatch]:
        """All scored rows, and those that the filters keep; a filter may ask for problems in place of what it drops."""
        wanted = method.problems
        rounds = max((f.rounds for f in method.filters if f.resample), default=1)
        assessed: list[TokenBatch] = []
        found: list[TokenBatch] = []
        for number in range(rounds):
            kept = sum(len(torch.unique(b.group)) for b in found)
            if kept >= wanted:
                break
            batch = self._assess(method, wanted if number == 0 else wanted - kept, stream.split("round", number))
            assessed.append(batch)
            for part in method.parts().values() if len(batch) else ():
                part.before_update(batch)
            for part in method.filters:
                batch = batch.replace(weights=batch.weights * part.weigh(batch)) if len(batch) else batch
            found.append(batch.rows((batch.weights != 0).nonzero()[:, 0]))
        useful = [b for b in found if len(b)]
        return assessed, concatenate(useful) if useful else found[0]

    def _assess(self, method: Method, count: int, stream: Stream) -> TokenBatch:
        """Episodes for `count` problems as a batch with rewards."""
        context = self.context(method, stream)
        problems = method.curriculum.choose(self.pool, count, stream.split("problems"))
        self.policy.emitted.clear()
        episodes = method.experience.collect(problems, context)
        lost = [e for e in episodes if e.stop is StopReason.FAULT]
        self._count_dropped(episodes, lost)
        episodes = [e for e in episodes if e.stop is not StopReason.FAULT and e.action_count]
        if not episodes:
            raise EnvironmentFault(
                f"None of {count} problems gave an episode with a sampled token: "
                + (f"the environment failed ({lost[0].info['fault']})." if lost else "every prompt fills the context.")
            )
        if method.experience.samples:
            self._check_tokens(episodes)
        temperature = getattr(method.experience, "temperature", 1.0)
        batch = to_batch(episodes, self.policy.tokenizer.pad_token_id, temperature, self.policy.device)
        if "reference_logp" in method.needs():
            batch.reference_logp = reference_all(self.policy, batch, self.updater.budget)
        if "entropy" in context.record and (entropy := recorded_entropies(batch)) is not None:
            batch.entropy = entropy
        elif "entropy" in method.needs("rewards", "filters", "advantages"):
            entropy = evaluate_all(self.policy, batch, {"entropy"}, self.updater.budget).entropy
            assert entropy is not None
            batch.entropy = entropy
        if "hidden" in method.needs("rewards", "filters"):
            batch = self._with_hidden(batch)
        elif "hidden" in context.record and (recorded := recorded_hidden(batch)) is not None:
            batch = self._with_hidden(batch, recorded)
        solved = [bool(self.task.success(e)) for e in episodes]
        batch.solved = torch.tensor(solved, device=self.policy.device)
        batch = score(batch, method.rewards, context)
        if self.task.judged_by_reward:
            batch.solved = batch.scores.new_tensor([self.task.success(e) for e in batch.episodes]).bool()
        why = [e.info["dropped"] == NO_REWARD for e in episodes if "dropped" in e.info]
        self.dropped.update({"no_reward": sum(why), "failed_reward": len(why) - sum(why)})
        return batch

    def _with_hidden(self, batch: TokenBatch, hidden: torch.Tensor | None = None) -> TokenBatch:
        """The batch with the states that predict its tokens, as the sampler recorded them, and the head that does."""
        hidden = recorded_hidden(batch) if hidden is None else hidden
        if hidden is None:
            hidden = evaluate_all(self.policy, batch, {"hidden"}, self.updater.budget).hidden
            assert hidden is not None
        return batch.replace(hidden=hidden, head=self.policy.head(batch.temperature))

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

    def context(self, method: Method, stream: Stream) -> Context:
        """What the parts may use during this step."""
        record = method.needs("token_weights", "rewards", "filters", "advantages")
        if self.policy.shadow or self.policy.autocast:
            record -= {"hidden"}  # of another precision than the trained weights'
        return Context(
            self.task,
            self.policy,
            stream,
            self.finished,
            self.steps,
            self._limit(),
            record,
        )

    def _credit(self, method: Method, batch: TokenBatch) -> TokenBatch:
        if "values" in method.needs():
            batch.values, batch.next_values = values_all(self.policy, batch, self.updater.budget)
        if "hidden" in method.needs("advantages") and batch.head is None:
            batch = self._with_hidden(batch)
        advantages = torch.zeros_like(batch.rewards) if method.advantages is None else method.advantages(batch)
        return batch.replace(advantages=advantages)

    def _refresh_reference(self, method: Method) -> None:
        if self.needs_reference and method.reference is not None:
            fraction = method.reference.refresh(self.finished)
            if fraction:
                self.policy.move_reference(fraction)

    # Checks and reports

    def _check_tokens(self, episodes: Sequence[Episode]) -> None:
        """Invariant 3: what is trained on is what the sampler emitted, token for token."""
        for e in episodes:
            for s in e.segments:
                if (
                    s.version == self.policy.version
                    and any(s.action_mask)
                    and hash(tuple(s.tokens[s.info.get("begun", 0) :])) not in self.policy.emitted
                ):
                    raise InvariantError(
                        f"A completion for problem {e.problem.id!r} has tokens that the sampler never emitted "
                        f"({s.text!r}): it was decoded and encoded again, or edited, after sampling."
                    )

    # Checkpoints

    def save(self, folder: Path) -> None:
        """Weights (also in Hugging Face's format under `model/`), optimizer, parts' states, counters."""
        self.policy.save(folder / "model")
        state = self.updater.optimizer.state_dict()
        moments = {f"optimizer.{i}.{k}": v for i, s in state["state"].items() for k, v in s.items()}
        learned, tensors = split_tensors([m.state_dict() for _, m in self.stages])
        save_tensors(folder / "state.safetensors", {**self.policy.tensors(), **moments, **tensors,
                                                  "noise": self.updater.noise.sums})  # fmt: skip
        counters = {"finished": self.finished, "version": self.policy.version, **self.differences.state_dict(),
                    "bad_steps": self.updater.bad_steps, "budget": self.updater.budget,
                    "halved": self.updater.halved}  # fmt: skip
        save_json(folder / "state.json", {"counters": counters, "parts": learned})

    def load(self, folder: Path) -> None:
        """Go back to exactly where `save` was called."""
        tensors, data = load_tensors(folder / "state.safetensors"), load_json(folder / "state.json")
        self.policy.load_tensors(tensors)
        state = self.updater.optimizer.state_dict()
        state["state"] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".")
                state["state"].setdefault(int(index), {})[key] = value
        self.updater.optimizer.load_state_dict(state)
        for (_, method), learned in zip(self.stages, join_tensors(data["parts"], tensors), strict=True):
            method.load_state_dict(learned)
        self.updater.noise.sums = tensors["noise"]
        counters = data["counters"]
        self.finished, self.policy.version = counters["finished"], counters["version"]
        self.differences.load_state_dict(counters)
        self.updater.bad_steps = counters["bad_steps"]
        self.updater.budget, self.updater.halved = counters["budget"], counters["halved"]
