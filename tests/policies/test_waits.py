"""What waits for the device while tokens are sampled, counted on a pretended one, so that it cannot come back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.utils._python_dispatch import TorchDispatchMode

from etude.core.draws import uniforms
from etude.policies import sampling, shared, stopping
from etude.policies.conversation import Conversation
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Completion, Sampling
from etude.policies.stopping import END, Stopper
from language_toys import KINDS, draws, random_policy, random_prompts, tokenizer
from two_devices import mark
from waits import Waits

F64 = torch.float64
PROMPTS = [*random_prompts(3, seed=1) * 3, *random_prompts(2, seed=2)]
WANTED = {
    "plain": Sampling(), "stops": Sampling(0.7, stop=("</x>", "é")), "recorded": Sampling(entropy=True, hidden=True),
    "truncated": Sampling(top_k=9, top_p=0.9), "greedy": Sampling(temperature=0),
}  # fmt: skip


def test_the_instrument_counts_what_waits() -> None:
    asks = {
        "item": lambda x: x[0].item(), "bool": lambda x: bool(x.sum()), "int": lambda x: int(x[0]),
        "mask": lambda x: x[x > 0], "tolist": lambda x: x.tolist(), "nonzero": lambda x: x.nonzero(),
        "unique": torch.unique, "cpu": lambda x: x.cpu(), "repeated": lambda x: x.repeat_interleave(x.long()),
        "equal": lambda x: torch.equal(x, x), "counts": lambda x: x.long().bincount(),
    }  # fmt: skip
    with Waits() as waits:
        there, here = torch.ones(3, device="cpu"), torch.ones(3)
        for name, ask in asks.items():
            for inference in (False, True):
                waits.clear()
                with torch.inference_mode(inference):
                    ask(there)
                assert waits.asked.total() == 1, f"{name} waits: {waits.asked}"
                waits.clear()
                ask(here)
                assert waits.asked.total() == 0, f"{name} of the host's own tensor waits for nothing: {waits.asked}"
        waits.clear()
        torch.tensor([1.0], device="cpu"), here.to(there.device), there.clone().copy_(here)
        here.to(there.device, non_blocking=True), (there * 2).sum()
        assert waits.total == (0, 3), "what is sent without waiting is free"


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device."""
    monkeypatch.setattr(sampling, "EVERY", {})


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguagePolicy, "end_ids", property(lambda self: [1000]))


@pytest.mark.slow
@pytest.mark.usefixtures("seldom", "endless")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WANTED)
def test_a_decoding_step_waits_for_nothing(kind: str, name: str) -> None:
    """Sixteen tokens more are one look more; before, eleven to fourteen things waited in every step."""
    policy, found = random_policy(kind), []
    few = Sampling(**{**vars(WANTED[name]), "max_tokens": 2})
    policy.generate(PROMPTS, few, draws(len(PROMPTS)))  # what is found out once for a model and its tokenizer
    for tokens in (16, 32, 64):
        wanted = Sampling(**{**vars(WANTED[name]), "max_tokens": tokens})
        with Waits() as waits:
            said = policy.generate(PROMPTS, wanted, draws(len(PROMPTS)))
        if name != "stops":
            assert [len(c.tokens) for c in said] == [tokens] * len(PROMPTS)
            found.append(waits.total)
        theirs = sum(n for where, n in waits.asked.items() if where.endswith(" feed"))  # transformers looks at padding
        assert theirs <= (2 if kind != "gpt2" else tokens + 1) and waits.asked.total() - theirs < 8 + tokens // 16
        if found:
            found[-1] = found[-1][0] - theirs, found[-1][1]
    assert name == "stops" or [b[0] - a[0] for a, b in itertools.pairwise(found)] == [1, 2]
    assert len({sent for _, sent in found}) <= 1, "nothing is sent while rows go on"


@pytest.mark.slow
@pytest.mark.usefixtures("seldom", "endless")
@pytest.mark.parametrize("rows", [slice(None), slice(0, 11, 2)])
def test_nor_does_a_step_of_rows_that_stay_open(rows: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a turn in which all go on, or some and the others rest."""
    monkeypatch.setattr(shared, "RECORDED", {"cpu"})
    policy, found = random_policy("llama"), []
    policy.generate(PROMPTS, Sampling(max_tokens=2), draws(len(PROMPTS)))
    for tokens in (16, 32, 64):
        talk = Conversation(policy)
        open_ = talk.open(PROMPTS)
        for more in (40, 1):  # the longest is one that may rest
            talk.sample(open_, Sampling(max_tokens=4), draws(len(open_)))
            talk.extend(open_, [[5] * (more if i == 1 else 1) for i in range(len(open_))])
        asked = open_[rows]
        with Waits() as waits:
            talk.sample(asked, Sampling(max_tokens=tokens), draws(len(asked)))
        found.append(waits.total)
        decoder: Any = talk._decoder
        assert decoder.longest == int(decoder.lengths.max()), "what was only counted is measured after a turn"
    assert [b[0] - a[0] for a, b in itertools.pairwise(found)] == [1, 2]
    assert len({sent for _, sent in found}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), [*((kind, "plain") for kind in KINDS), *(("llama", name) for name in WANTED if name != "plain")]
)
def test_looking_seldom_changes_no_token(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, found = random_policy(kind, dtype=F64, context=60), list[list[Completion]]()
    wanted = Sampling(**{**vars(WANTED[name]), "max_tokens": 55})
    monkeypatch.setattr(LanguagePolicy, "end_ids", property(lambda self: [1, 30, 31, 32, 33, 34, 35]))
    for every in ({"cpu": 1}, {"cpu": 3}, {}):
        monkeypatch.setattr(sampling, "EVERY", every)
        found.append(policy.generate(PROMPTS, wanted, draws(len(PROMPTS), 4)))
    assert len({len(c.tokens) for c in found[0]}) > 3, "rows end at different times"
    for other in found[1:]:
        assert [(c.tokens, c.stop) for c in other] == [(c.tokens, c.stop) for c in found[0]]
        for one, same in zip(found[0], other):
            assert same.logp == pytest.approx(one.logp, abs=1e-9) and same.entropy == pytest.approx(
                one.entropy, abs=1e-9
            )
            if one.hidden is not None and same.hidden is not None:
                torch.testing.assert_close(same.hidden, one.hidden, rtol=0, atol=1e-9)


# Stop strings


def ended_by_hand(tokens: Sequence[int], ends: Sequence[int], strings: Sequence[str]) -> tuple[int, str]:
    """How many tokens a row has, all text decoded after every one of them, and what ended it."""
    for i, token in enumerate(tokens):
        if token in ends:
            return i + 1, "end"
        if any(s in tokenizer().decode(tokens[: i + 1]) for s in strings):
            return i + 1, "string"
    return len(tokens), ""


letters = st.text(alphabet="ab<é>\n", min_size=1, max_size=4)


@given(
    st.lists(st.lists(st.sampled_from(range(3, 300)), min_size=24, max_size=24), min_size=1, max_size=4),
    st.lists(letters, min_size=1, max_size=3), st.sampled_from([1, 5, 8]), st.lists(letters, max_size=8),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_rows_end_where_their_text_does(rows: list[list[int]], strings: list[str], every: int, said: list[str]) -> None:
    written = tokenizer().encode("".join(said), add_special_tokens=False)
    tokens = np.array([[*written, *row][:24] for row in rows])
    stopper, ends = Stopper(tokenizer(), [1, 77], tuple(strings), 307), np.full(len(rows), 24)
    for begun in range(0, 24, every):
        stopper.look(tokens, ends, np.arange(len(rows)), begun, min(24, begun + every))
    for row, (own, end) in enumerate(zip(tokens.tolist(), ends.tolist())):
        length, why = ended_by_hand(own, [1, 77], strings)
        assert end == length and (row in stopper.stopped) == (why == "string")


def test_few_tokens_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 307 tokens six at most can end '</x>': what is decoded is what follows one of them."""
    found = stopping.table(tokenizer(), ("</x>",), 307)
    texts = [tokenizer().decode([i]) for i in range(len(tokenizer()))]
    for i, text in enumerate(texts):
        assert bool(found[i]) == (text.startswith(">") or "</x>" in text or text in ("x>", "/x>"))
    assert found[len(tokenizer()) :].all(), "of what the tokenizer does not know nothing is known"
    tidy: Any = tokenizer()
    monkeypatch.setattr(tidy, "clean_up_tokenization_spaces", True, raising=False)
    stopping._tables.clear()
    assert stopping.table(tidy, ("</x>",), 307).all(), "a text that is tidied up may end anywhere"
    stopping._tables.clear()


def test_an_end_token_is_an_end_whatever_its_text() -> None:
    token = tokenizer().encode(">", add_special_tokens=False)[0]
    assert Stopper(tokenizer(), [token, 10**6], (">",), 307).table[token] == END


# Drawing


def distributions(rows: int, size: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(size)
    probs = (torch.randn(rows, size, generator=random) * torch.linspace(0.5, 6, rows)[:, None]).softmax(-1)
    return probs.masked_fill(probs < 1e-9, 0.0)


def whole(probs: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    cumulative = probs.cumsum(-1, dtype=F64)
    return torch.searchsorted(cumulative, (share * cumulative[:, -1])[:, None], right=True)


@pytest.mark.parametrize("size", [5, 8192, 8193, 20_000, 20_480])
def test_spans_are_passed_where_the_whole_is(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    probs = distributions(300, size)
    shares = uniforms(torch.arange(300), 0, 1)[0]
    assert torch.equal(sampling._passed(probs, shares), whole(probs, shares))
    monkeypatch.setattr(sampling, "SUMS", {})  # as on a device
    found = sampling._passed(probs, shares)
    assert int((found != whole(probs, shares)).sum()) <= 1, "float32 moves a border by 1e-7"
    for edge in (0.0, sampling.BELOW_ONE):
        chosen = sampling._passed(probs, torch.full((300,), edge, dtype=F64))
        assert (probs.gather(1, chosen) > 0).all(), "what cannot be drawn is not drawn at the edges either"


@pytest.mark.slow
@pytest.mark.parametrize("sums", [{"cpu": F64}, {}])
def test_tokens_of_a_large_vocabulary_are_drawn_with_their_probabilities(
    sums: dict[str, torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SUMS", sums)
    n, logits = 4_000, torch.randn(1, 10_000, generator=torch.Generator().manual_seed(1)) * 4
    probs = logits.double().softmax(-1)[0]
    tokens, logp = zip(
        *(sampling._draw(logits.expand(500, -1), Sampling(), uniforms(torch.arange(500) + 500 * i, 0, 1)[0])[:2]
          for i in range(n // 500))
    )  # fmt: skip
    drawn = torch.cat(tokens)
    torch.testing.assert_close(torch.cat(logp).double(), probs.log()[drawn], rtol=0, atol=2e-6)
    often = (probs * n >= 5).nonzero()[:, 0]
    counts = torch.bincount(drawn, minlength=len(probs))[often].tolist()
    expected = (probs[often] * n).tolist()
    assert len(often) > 50
    assert chisquare([*counts, n - sum(counts)], [*expected, n - sum(expected)]).pvalue > 1e-3


class Largest(TorchDispatchMode):
    """The most numbers of a float64 tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(each, torch.Tensor) and each.dtype == F64:
                self.most = max(self.most, each.numel())
        return out


def test_a_large_vocabulary_is_not_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 152,000 entries and 4 rows, float64 holds no more than a span of each row."""
    monkeypatch.setattr(sampling, "SUMS", {})
    with Largest() as found:
        sampling._draw(torch.zeros(4, 152_000), Sampling(), mark(uniforms(torch.arange(4), 0, 1)[0]))
    assert 0 < found.most <= 4 * sampling.SPAN
