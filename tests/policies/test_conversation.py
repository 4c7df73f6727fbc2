"""Rows that stay open: what they say is what a full prefill of their tokens would say, and nothing is read twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from test_architectures import EXACT, model_of
from torch import Tensor

from etude.core.draws import Draw
from etude.core.errors import ConfigError
from etude.policies import conversation as module
from etude.policies import feeding, sampling, shared
from etude.policies.adapters import Adapter
from etude.policies.cache import CachedDecoder
from etude.policies.conversation import Conversation
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Completion, Sampling
from etude.policies.shared import SharedDecoder
from language_toys import KINDS, VOCABULARY, random_policy, random_prompts, tokenizer

F64 = torch.float64
PROMPTS = [*random_prompts(2, seed=1) * 2, *random_prompts(2, seed=2)]
SAMPLING = Sampling(max_tokens=5)
TURNS = 4
SEVERAL = ["Mistral", "Bloom", "Gemma2", "GptOss", "OPT", "Mamba", "Jamba", "Lfm2", "Qwen3Next", "FalconH1"]


def ending(policy: LanguagePolicy) -> LanguagePolicy:
    """The policy with many end tokens, so that turns are of several lengths."""
    policy.__class__ = type("Ending", (LanguagePolicy,), {"end_ids": property(lambda self: list(range(1, 60)))})
    return policy


def seen_by(row: int, turn: int) -> list[int]:
    """What a row observes after a turn: one to four tokens."""
    random = torch.Generator().manual_seed(100 * row + turn)
    return torch.randint(60, VOCABULARY, (1 + (row + turn) % 4,), generator=random).tolist()


def draws_of(rows: Sequence[int], turn: int) -> list[Draw]:
    return [Draw.at(row, turn) for row in rows]


Turns = list[list[Completion]]


def played(policy: LanguagePolicy, batches: Sequence[Sequence[int]] = (range(6),), limit: int | None = None) -> Turns:
    """What every row says in every turn, sampled in these batches."""
    talk = Conversation(policy, limit)
    rows = talk.open(PROMPTS)
    said: Turns = []
    for turn in range(TURNS):
        found: dict[int, Completion] = {}
        for batch in batches:
            given = talk.sample([rows[i] for i in batch], SAMPLING, draws_of(batch, turn), last=False)
            found |= dict(zip(batch, given))
        said.append([found[i] for i in range(len(PROMPTS))])
        talk.extend(rows, [seen_by(i, turn) for i in range(len(rows))])
    return said


def again(policy: LanguagePolicy) -> Turns:
    """The same, every turn prefilled from its beginning."""
    views, said = [list(p) for p in PROMPTS], []
    for turn in range(TURNS):
        said.append(policy.generate(views, SAMPLING, draws_of(range(len(views)), turn)))
        for i, c in enumerate(said[-1]):
            views[i] += [*c.tokens, *seen_by(i, turn)]
    return said


def check(found: Turns, wanted: Turns, close: float) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert [(c.tokens, c.stop) for c in ours] == [(c.tokens, c.stop) for c in theirs]
        for a, b in zip(ours, theirs):
            assert a.logp == pytest.approx(b.logp, abs=close)


@pytest.mark.first
@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_says_what_a_full_prefill_says(kind: str) -> None:
    policy = ending(random_policy(kind, dtype=F64))
    wanted = again(policy)
    assert len({len(c.tokens) for turn in wanted for c in turn}) > 3, "turns are of several lengths"
    check(played(policy), wanted, 1e-9)


@pytest.mark.parametrize("stride", [4, 128])
@pytest.mark.parametrize("batches", [[range(6)], [[0, 3], [5], [1, 2, 4]]])
def test_steps_that_are_recorded_leave_resting_rows_alone(
    batches: Sequence[Sequence[int]], stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all rows go through every step, as on a GPU."""
    policy = ending(random_policy("llama", dtype=F64))
    wanted = again(policy)
    monkeypatch.setattr(shared, "RECORDED", {"cpu"})
    monkeypatch.setattr(shared, "STRIDE", stride)
    taken, step = list[int](), SharedDecoder._fixed_step

    def counted(self: SharedDecoder, rows: Any, seen: int, tokens: Tensor, *rest: Tensor) -> Tensor:
        taken.append(len(tokens))
        return step(self, rows, seen, tokens, *rest)

    monkeypatch.setattr(SharedDecoder, "_fixed_step", counted)
    check(played(policy, batches), wanted, 1e-9)
    assert taken[-1] == 6 and len(taken) > 2 * TURNS


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("every", [{"cpu": 3}, {}])
@pytest.mark.parametrize("batches", [[range(6)], [[0, 3], [5], [1, 2, 4]]])
def test_what_is_fed_behind_an_end_before_anybody_looks_is_forgotten(
    batches: Sequence[Sequence[int]], every: dict[str, int], recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, forgotten, rewind = ending(random_policy("llama", dtype=F64)), list[int](), SharedDecoder.rewind
    wanted = again(policy)

    def counted(self: SharedDecoder, rows: Sequence[int], counts: Sequence[int]) -> list[bool]:
        before = self.lengths[list(rows)].sum()
        can = rewind(self, rows, counts)
        forgotten.append(int(before - self.lengths[list(rows)].sum()))
        return can

    monkeypatch.setattr(SharedDecoder, "rewind", counted)
    monkeypatch.setattr(sampling, "EVERY", every)
    monkeypatch.setattr(shared, "RECORDED", {"cpu"} if recorded else set())
    check(played(policy, batches), wanted, 1e-9)
    assert sum(forgotten) > 6 and min(forgotten) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_known_families_go_on_in_the_written_out_decoder(kind: str) -> None:
    """Which agrees with transformers' one after several tokens at once, too: else it would not be taken."""
    talk = Conversation(random_policy(kind))
    talk.sample(talk.open(PROMPTS), SAMPLING, draws_of(range(6), 0))
    assert isinstance(talk._decoder, CachedDecoder if kind == "gpt2" else SharedDecoder)


@pytest.mark.filterwarnings("ignore")  # transformers': a faster kernel is not installed
@pytest.mark.parametrize("name", SEVERAL)
def test_every_cache_goes_on(name: str) -> None:
    """Windows, recurrent states and mixtures of them: float32, so that rounding is seen."""
    policy = ending(LanguagePolicy(model_of(name, {**EXACT[name], "max_position_embeddings": 128}), tokenizer()))
    check(played(policy), again(policy), 5e-6)


def test_a_window_shorter_than_the_turns_goes_on() -> None:
    policy = ending(
        LanguagePolicy(model_of("Mistral", {**EXACT["Mistral"], "sliding_window": 3}).double(), tokenizer())
    )
    check(played(policy), again(policy), 1e-9)


@pytest.mark.parametrize("name", ["linear-attention:6"])
def test_a_readable_model_goes_on(name: str) -> None:
    policy = LanguagePolicy.load(name, device="cpu")
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    talk, first = Conversation(policy), policy.encode("ab bc ca a")
    rows = talk.open([first, [*first, 2]])
    sampling, views = Sampling(max_tokens=2), [list(first), [*first, 2]]
    for turn in range(3):
        said = talk.sample(rows, sampling, draws_of(range(2), turn))
        check([said], [policy.generate(views, sampling, draws_of(range(2), turn))], 1e-6)
        for i, c in enumerate(said):
            views[i] += [*c.tokens, *[1] * (i + 1)]
        talk.extend(rows, [[1], [1, 1]])


@pytest.mark.first
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("batches", [[[5, 0, 3, 1, 4, 2]], [[3, 1], [5, 0, 2, 4]], [[i] for i in range(6)]])
def test_neither_order_nor_batches_matter(kind: str, batches: list[list[int]]) -> None:
    policy = ending(random_policy(kind, dtype=F64))
    check(played(policy, batches), played(policy), 1e-9)


@pytest.mark.first
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_nothing_is_prefilled_twice(kind: str) -> None:
    policy = ending(random_policy(kind, dtype=F64))
    said = played(policy)
    opened = sum(map(len, {tuple(p) for p in PROMPTS}))
    # a turn's last token is fed with what follows it
    between = sum(1 + len(seen_by(i, turn)) for turn in range(TURNS - 1) for i in range(len(PROMPTS)))
    sampled = sum(len(c.tokens) for turn in said for c in turn)
    assert policy.work == {"prefilled_tokens": opened + between, "prefilled_again": 0, "sampled_tokens": sampled}


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_what_is_dropped_is_prefilled_again_and_counted(kind: str) -> None:
    policy = ending(random_policy(kind, dtype=F64))
    wanted = played(policy)
    policy.work.clear()
    token = policy.cache_bytes(1)
    check(played(policy, limit=40 * token), wanted, 1e-9)
    some = policy.work["prefilled_again"]
    policy.work.clear()
    check(played(policy, limit=0), wanted, 1e-9)
    assert 0 < some < policy.work["prefilled_again"]


def test_a_limit_counts_a_shared_prompt_once() -> None:
    policy = random_policy(dtype=F64)
    talk = Conversation(policy)
    talk.sample(talk.open([[5, 6, 7], [5, 6, 7], [8, 9]]), Sampling(temperature=0, max_tokens=1), draws_of(range(3), 0))
    assert talk._decoder is not None
    token = policy.cache_bytes(1)  # three of the first prompt, none for its equal, two of the other
    assert [talk._decoder.fitting(n * token) for n in (2, 3, 4, 5)] == [0, 2, 2, 3]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_other_weights_read_everything_again(kind: str) -> None:
    policy, sampling = random_policy(kind, dtype=F64), Sampling(max_tokens=4)
    talk = Conversation(policy)
    rows, views = talk.open(PROMPTS), [list(p) for p in PROMPTS]
    for version in range(2):
        said = talk.sample(rows, sampling, draws_of(range(6), version))
        check([said], [policy.generate(views, sampling, draws_of(range(6), version))], 1e-9)
        for view, c in zip(views, said):
            view += c.tokens
        with torch.no_grad():
            for p in policy.model.parameters():
                p.mul_(1.1)
        policy.updated()
        held = sum(len(view) - 1 for view in views)
        policy.work.clear()
    check(
        [talk.sample(rows, sampling, draws_of(range(6), 2))],
        [policy.generate(views, sampling, draws_of(range(6), 2))],
        1e-9,
    )
    assert policy.work["prefilled_again"] == held
    policy.load_tensors({k: v * 1.1 for k, v in policy.tensors().items()})  # of the same version
    policy.work.clear()
    talk.sample(rows, sampling, draws_of(range(6), 3))
    assert policy.work["prefilled_again"] > held


@pytest.mark.slow
def test_the_bfloat16_sampler_goes_on_and_follows_the_weights() -> None:
    policy, sampling = random_policy(shadow=True), Sampling(max_tokens=4)
    talk = Conversation(policy)
    rows, views = talk.open(PROMPTS), [list(p) for p in PROMPTS]
    for version in range(2):
        for turn in range(2):
            said = talk.sample(rows, sampling, draws_of(range(6), turn))
            for i, (view, c) in enumerate(zip(views, said)):
                (alone,) = talk_logp(policy, view, c)
                assert c.logp == pytest.approx(alone, abs=0.3), (version, turn, i)
                view += [*c.tokens, *seen_by(i, turn)]
            talk.extend(rows, [seen_by(i, turn) for i in range(6)])
        with torch.no_grad():
            for p in policy.model.parameters():
                p.mul_(-1.0)
        policy.updated()


def talk_logp(policy: LanguagePolicy, view: list[int], said: Completion) -> list[list[float]]:
    """Log-probabilities of what was said after a view, by the sampler's model at once."""
    ids = torch.tensor([[*view, *said.tokens]])
    logits = policy.sampler()(input_ids=ids).logits[0, len(view) - 1 : -1].float()
    return [logits.log_softmax(-1).gather(1, ids[0, len(view) :, None])[:, 0].tolist()]


@pytest.mark.slow
def test_a_row_with_an_adapter_goes_on() -> None:
    from etude.core.streams import Stream

    plain = random_policy(dtype=F64)
    policy = LanguagePolicy(Adapter(rank=2).wrap(plain.model, Stream(0)), tokenizer())
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.3)
    policy.updated()
    check(played(ending(policy)), again(policy), 1e-9)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_forks_share_their_history(kind: str) -> None:
    policy, sampling = ending(random_policy(kind, dtype=F64)), Sampling(max_tokens=4)
    talk = Conversation(policy)
    rows, views = talk.open(PROMPTS[:2]), [list(p) for p in PROMPTS[:2]]
    early = talk.fork(rows)  # before anything was read
    for turn in range(2):
        said = talk.sample(rows, sampling, draws_of(range(2), turn))
        for i, c in enumerate(said):
            views[i] += [*c.tokens, *seen_by(i, turn)]
        talk.extend(rows, [seen_by(i, turn) for i in range(2)])
    policy.work.clear()
    forks = talk.fork([rows[0], rows[1], rows[0], rows[0]])
    talk.extend(forks[3:], [[70, 71]])
    shown = [views[0], views[1], views[0], [*views[0], 70, 71], views[0], views[1], PROMPTS[0]]
    asked = [*forks, *rows, early[0]]
    said = talk.sample(asked, sampling, draws_of(range(7), 9))
    assert policy.work["prefilled_again"] == 0
    unread = [len(seen_by(i, 1)) + 1 for i in range(2)]
    fed = 4 * unread[0] + 2 * unread[1] + 2 + len(PROMPTS[0])
    assert policy.work["prefilled_tokens"] == fed
    check([said], [policy.generate(shown, sampling, draws_of(range(7), 9))], 1e-9)
    more = talk.sample([forks[2], rows[0]], sampling, draws_of(range(2), 10))  # and go on by themselves
    ends = [[*views[0], *said[2].tokens], [*views[0], *said[4].tokens]]
    check([more], [policy.generate(ends, sampling, draws_of(range(2), 10))], 1e-9)


def test_forks_of_one_history_have_one_block() -> None:
    policy = random_policy(dtype=F64)
    talk = Conversation(policy)
    (row,) = talk.open(PROMPTS[:1])
    talk.sample([row], SAMPLING, draws_of([0], 0))
    many = talk.fork([row] * 50)
    assert talk._decoder is not None and len(talk._decoder.real) == 2 and not talk._decoder.lengths[1:].any()  # type: ignore[attr-defined]
    talk.close(many)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_long_observations_are_fed_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "SHORT", 2)
    monkeypatch.setattr(feeding, "PIECE", 4)
    monkeypatch.setattr(feeding, "SCORES", 60)
    policy, sampling = random_policy(kind, dtype=F64, context=256), Sampling(max_tokens=3)
    talk = Conversation(policy)
    rows, views = talk.open(PROMPTS), [list(p) for p in PROMPTS]
    for turn in range(3):
        said = talk.sample(rows, sampling, draws_of(range(6), turn))
        check([said], [policy.generate(views, sampling, draws_of(range(6), turn))], 1e-9)
        new = [(list(range(60, 100)) * 2)[: (7 * i * (turn + 1)) % 41] for i in range(6)]
        talk.extend(rows, new)
        for view, c, more in zip(views, said, new):
            view += [*c.tokens, *more]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_rows_come_and_go(kind: str) -> None:
    policy, sampling = ending(random_policy(kind, dtype=F64)), Sampling(max_tokens=4)
    talk, views, rows = Conversation(policy), dict[int, list[int]](), dict[int, int]()
    for turn in range(6):
        leaving = [i for i in rows if (i + turn) % 3 == 0]
        talk.close([rows.pop(i) for i in leaving])
        new = range(10 * turn, 10 * turn + 4)
        views.update((i, list(random_prompts(1, seed=i)[0])) for i in new)
        rows.update(zip(new, talk.open([views[i] for i in new])))
        asked = sorted(rows, key=lambda i: (i * 7) % 11)
        said = talk.sample([rows[i] for i in asked], sampling, draws_of(asked, turn))
        check([said], [policy.generate([views[i] for i in asked], sampling, draws_of(asked, turn))], 1e-9)
        for i, c in zip(asked, said):
            views[i] += [*c.tokens, *seen_by(i, turn)]
            talk.extend([rows[i]], [seen_by(i, turn)])
    assert talk._decoder is not None and talk._decoder.size < 24, "closed rows give back what they took"
    talk.close(list(rows.values()))
    assert talk._decoder is None


def test_the_last_turn_closes_its_rows() -> None:
    policy = ending(random_policy(dtype=F64))
    talk = Conversation(policy)
    rows = talk.open(PROMPTS)
    wanted = Conversation(policy)
    others = wanted.open(PROMPTS)
    for turn in range(2):
        said = talk.sample(rows, SAMPLING, draws_of(range(6), turn), last=turn == 1)
        check([said], [wanted.sample(others, SAMPLING, draws_of(range(6), turn))], 1e-9)
    assert talk._decoder is None
    with pytest.raises(ValueError, match=r"There is no open row 1: it was closed"):
        talk.extend(rows[:1], [[5]])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("limit", [None, 1])
def test_the_last_turn_of_some_rows_leaves_the_others_open(kind: str, limit: int | None) -> None:
    """Also where nothing is kept of the others."""
    policy = ending(random_policy(kind, dtype=F64))
    talk, wanted = Conversation(policy, limit), Conversation(policy)
    rows, others = talk.open(PROMPTS), wanted.open(PROMPTS)
    for turn, (asked, last) in enumerate(
        [(range(6), False), ((1, 4), True), ((0, 2, 3), False), ((3, 5), True), ((0, 2), True)]
    ):
        said = talk.sample([rows[i] for i in asked], SAMPLING, draws_of(asked, turn), last=last)
        check([said], [wanted.sample([others[i] for i in asked], SAMPLING, draws_of(asked, turn))], 1e-9)
    assert talk._decoder is None


def test_an_interrupted_turn_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = ending(random_policy(dtype=F64))
    talk = Conversation(policy)
    rows = talk.open(PROMPTS)
    first = talk.sample(rows, SAMPLING, draws_of(range(6), 0))

    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            talk.sample(rows, SAMPLING, draws_of(range(6), 1))
    views = [[*p, *c.tokens] for p, c in zip(PROMPTS, first)]
    said = talk.sample(rows, SAMPLING, draws_of(range(6), 1))
    check([said], [policy.generate(views, SAMPLING, draws_of(range(6), 1))], 1e-9)


def test_what_cannot_be_asked_for_is_said() -> None:
    policy = random_policy(context=16)
    talk = Conversation(policy)
    (row,) = talk.open([[5, 6]])
    with pytest.raises(ValueError, match="asked for two completions at once: fork it"):
        talk.sample([row, row], SAMPLING, draws_of(range(2), 0))
    talk.sample([row], SAMPLING, draws_of([0], 0))
    talk.extend([row], [[7] * 20])
    with pytest.raises(ConfigError, match=r"from 1 to 15 tokens, as the model attends to 16; got 2\d\."):
        talk.sample([row], SAMPLING, draws_of([0], 1))
    assert talk.tokens(row)[:2] == [5, 6]


def test_the_limit_is_a_power_of_two_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available", lambda: 5_000)
    assert Conversation(random_policy()).limit == 1024
    monkeypatch.setattr(module, "available", lambda: None)
    assert Conversation(random_policy()).limit == module.ENOUGH
