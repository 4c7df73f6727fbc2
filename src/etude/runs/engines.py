"""Engines of a run: whether a method can do with one, and whether it says what the trainer would have said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.stages import applied
from etude.policies.engines.addresses import PUBLIC, address_of
from etude.runtime.executors.places import place_of

if TYPE_CHECKING:
    from etude.policies.engines.remote import RemoteEngine
    from etude.policies.language import LanguagePolicy
    from etude.policies.sampling import Completion
    from etude.runs.training import Options

ROWS, LONG = 8, 8
"""Rows that an engine is tried with, and tokens of each of them."""
TEMPERATURES = (1.0, 0.7)
"""At which it is tried: log-probabilities before temperature and behind it differ at the second alone."""
REPORTS = {
    "vLLM": "Start it with --logprobs-mode processed_logprobs",
    "SGLang": "Start it without SGLANG_RETURN_ORIGINAL_LOGPROB",
}


def check(method: Method, options: Options) -> None:
    """Raise ConfigError for a method that cannot do with an engine, or for several processes that would share one."""
    from etude.core.complete import complete_token
    from etude.loops.token_learning import own_needs

    assert options.engine is not None
    place = place_of(options.on)
    if place.executor not in ("local", "processes") or (place.executor == "processes" and place.ranks > 1):
        raise ConfigError(
            f"An engine holds one version of the weights, and --on {options.on} would have several processes give it "
            "theirs: run --on local or --on processes with --engine."
        )
    stages = [own for _, own in applied(method)]
    if not any((experience := own.slots()["experience"]) and experience.samples for own in stages):
        raise ConfigError(f"--engine is for methods that sample, and {method.id} learns from data: leave it out.")
    own_kind = address_of(options.engine).kind == "native"
    for own in stages:
        noted = complete_token(own).needs("token_weights", "rewards", "filters", "advantages") | own_needs(own)
        for need, what in (("hidden", "hidden states"), ("entropy", "entropies")):
            if need in noted and not (own_kind and need == "entropy"):
                raise ConfigError(
                    f"{method.id} learns from {what} that were noted while sampling, and this engine sends none: leave "
                    "out --engine."
                )


def connect(text: str) -> RemoteEngine:
    """The engine at an address. Raises what `RemoteEngine` does."""
    from etude.policies.engines.remote import RemoteEngine

    return RemoteEngine(address_of(text), public=text.startswith(PUBLIC))


def agreeing(text: str, policy: LanguagePolicy) -> RemoteEngine:
    """The engine at an address, which has the policy's weights and says the same of tokens as the trainer does.

    Raises: ConfigError where the log-probabilities of what it samples differ by more than rounding.
    """
    from etude.loops.noise import CEILING
    from etude.policies import snapshots

    engine = connect(text)
    where, dtype = engine.address.url, policy.model.dtype
    emitted, work = set(policy.emitted), policy.work.copy()
    mark = snapshots.mark(snapshots.weights(policy))
    for temperature in TEMPERATURES:
        found = gap(engine, policy, mark, temperature)
        if found <= CEILING[dtype]:
            continue
        name = engine.dialect.name
        if temperature == 1:
            raise ConfigError(
                f"The engine at {where} has log-probabilities that differ by {found:.3g} nats per token from the "
                f"trainer's, and at most {CEILING[dtype]:.3g} is rounding: it holds another model, did not take the "
                f"weights, or computes in another type than {str(dtype).removeprefix('torch.')}. Nothing was trained."
            )
        raise ConfigError(
            f"The engine at {where} has the trainer's log-probabilities at temperature 1, and at {temperature:g} they "
            f"differ by {found:.3g} nats per token: it reports those before temperature. "
            f"{REPORTS.get(name, 'It is of another version')}. Nothing was trained."
        )
    policy.emitted, policy.work = emitted, work
    return engine


def gap(engine: RemoteEngine, policy: LanguagePolicy, mark: str, temperature: float) -> float:
    """Mean of |difference| per token, in nats, of what the engine samples behind random tokens."""
    import torch

    from etude.core.rows import to_batch
    from etude.policies.sampling import Sampling

    count = min(len(policy.tokenizer), int(policy.config.vocab_size))
    prompts = torch.randint(0, count, (ROWS, 4), generator=torch.Generator().manual_seed(0)).tolist()
    conversation = engine.converse(policy, mark)
    rows, draws = conversation.open(prompts), [Draw.at(0, "engine", row) for row in range(ROWS)]
    said = conversation.sample(rows, Sampling(temperature, max_tokens=LONG), draws, last=True)
    episodes = [_episode(i, prompt, c) for i, (prompt, c) in enumerate(zip(prompts, said))]
    batch = to_batch(episodes, policy.tokenizer.pad_token_id, temperature, policy.device)
    with torch.no_grad():
        gaps = (policy.evaluate(batch).logp.double() - batch.behaviour_logp.double()).abs()[batch.action_mask]
    return float(gaps.mean())


def _episode(number: int, prompt: list[int], said: Completion) -> Episode:
    """A row that the engine was tried with."""
    shown = Segment("user", tokens=prompt, action_mask=[0] * len(prompt), behaviour_logp=[0.0] * len(prompt))
    spoken = Segment("assistant", tokens=said.tokens, action_mask=[1] * len(said.tokens), behaviour_logp=said.logp)
    return Episode(Problem(f"engine-{number}", ""), [shown, spoken], group=number)
