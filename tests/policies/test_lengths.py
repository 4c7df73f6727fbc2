"""Prompts are counted once: again only where something that their tokens depend on has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etude.core.episodes import Problem
from etude.policies import lengths
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.lengths import prompt_lengths, size
from etude.runtime import remembered
from etude.tasks.language.files import DataFile
from language_toys import Toy

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end|>\n{% endfor %}"
PROBLEMS = [Problem(str(n), "x" * (n % 7 + 1)) for n in range(lengths.FEW)]


class Words:
    """A tokenizer alone, which counts what it is asked."""

    def __init__(self, template: str | None = None) -> None:
        self.tokenizer = build_tokenizer(256)
        self.tokenizer.chat_template = template
        self.asked = 0

    def encode(self, text: str) -> list[int]:
        self.asked += 1
        return list(self.tokenizer.encode(text, add_special_tokens=False))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETUDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def asked(problems: list[Problem] = PROBLEMS, template: str | None = None, **fields: Any) -> int:
    """How many texts were encoded to know the lengths, which are those of each prompt."""
    words, task = Words(template), Toy(**fields)
    found = prompt_lengths(problems, task, words)  # type: ignore[arg-type]
    count = words.asked
    assert found == [size(p, task, words) for p in problems]  # type: ignore[arg-type]
    return count


@pytest.mark.slow
def test_a_second_start_counts_nothing(cache: Path) -> None:
    assert asked() == len(PROBLEMS)
    assert asked() == 0
    assert len(list(cache.rglob("*.safetensors"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda: asked(template=CHATML),
        lambda: asked([*PROBLEMS[:-1], Problem("other", "y")]),
        lambda: asked([*PROBLEMS, Problem("one more", "y")]),
        lambda: asked([*PROBLEMS[:-1], Problem("m", [{"role": "user", "content": "y"}])], CHATML),
        lambda: asked(template=CHATML, chat="never"),
        lambda: asked(add_bos=False),
    ],
)
def test_what_changes_is_counted_again(change: Callable[[], int]) -> None:
    asked()
    assert change() >= len(PROBLEMS)
    assert change() == 0


@pytest.mark.slow
def test_the_systems_message_is_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("Be brief.")
    assert asked(template=CHATML, system=str(tmp_path / "s.txt")) == len(PROBLEMS)
    assert asked(template=CHATML, system=str(tmp_path / "s.txt")) == 0
    (tmp_path / "s.txt").write_text("Be very brief.")
    assert asked(template=CHATML, system=str(tmp_path / "s.txt")) == len(PROBLEMS)


@pytest.mark.slow
def test_a_template_with_the_date_is_counted_again_the_next_day(monkeypatch: pytest.MonkeyPatch) -> None:
    template = CHATML + "{{ strftime_now('%d') }}"
    assert asked(template=template) == len(PROBLEMS)
    assert asked(template=template) == 0

    class Later:
        @staticmethod
        def today() -> Any:
            import datetime

            return datetime.date(2100, 1, 1)

    monkeypatch.setattr(lengths, "date", Later)
    assert asked(template=template) == len(PROBLEMS)


@pytest.mark.slow
def test_few_prompts_are_not_kept(cache: Path) -> None:
    assert asked(PROBLEMS[:-1]) == len(PROBLEMS) - 1 == asked(PROBLEMS[:-1])
    assert not cache.exists()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_file_is_made_again(cache: Path, damage: bytes | None) -> None:
    asked()
    (file,) = cache.rglob("*.safetensors")
    good = file.read_bytes()
    file.write_bytes(good[:-4] if damage is None else damage)
    assert asked() == len(PROBLEMS)
    assert file.read_bytes() == good


@pytest.mark.slow
def test_where_nothing_can_be_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file where the folder should be")
    assert asked() == asked() == len(PROBLEMS)
    monkeypatch.setenv("ETUDE_CACHE", "")
    assert remembered.home() is None
    assert asked() == asked() == len(PROBLEMS)
    monkeypatch.delenv("ETUDE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert remembered.home() == Path("/x/etude")


def test_the_oldest_go(cache: Path) -> None:
    for n in range(remembered.KEPT + 3):
        remembered.numbers("lengths", f"{n:x}", 1, lambda: [1])
        os.utime(cache / "lengths" / f"{n:x}.safetensors", (n, n))
    left = {p.stem for p in (cache / "lengths").iterdir()}
    assert len(left) == remembered.KEPT and f"{remembered.KEPT + 2:x}" in left and "0" not in left


@pytest.mark.slow
def test_long_prompts_of_a_file_are_found_in_the_kept_lengths(tmp_path: Path) -> None:
    from collections import Counter

    from etude.loops.gather import Gatherer
    from language_toys import random_policy

    rows = "".join(f'{{"prompt": "{"x" * (200 if n == 3 else 3)} {n}"}}\n' for n in range(lengths.FEW + 200))
    (tmp_path / "rows.jsonl").write_text(rows)
    task = DataFile(str(tmp_path / "rows.jsonl"), test_fraction=0.0, max_tokens=8)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"1 of 1200 prompts are longer than 120 tokens"):
            gatherer = Gatherer(task, random_policy(), task.problems("train"), 8, Counter())
        assert len(gatherer.pool) == 1199
