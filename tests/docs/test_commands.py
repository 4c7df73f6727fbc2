"""Every command of the documentation: its verb and flags are there, and what it would train is composed and fits.

Commands in blocks go as far as they can without training, in a folder with the files that the pages name; what answers
with a sentence answers with the page's. Those that only look are run, and evaluations of models go up to the model. The
sixty tasks of `coming-from.md` are run by `cli/test_first_day.py`, and tutorials by the tests of their pages.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from etude.cli.app import VERBS, app
from etude.core.errors import EtudeError
from etude.core.registry import import_source
from etude.policies.loading import BUILT_IN
from log_toys import cartpole_columns, pendulum_columns

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = DOCS / "examples"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
METHODS = sorted((DOCS / "methods").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STANDS_FOR = {
    "RUN": "tiny", "START": "tiny", "shown": "tiny", "Qwen/Qwen2.5-0.5B-Instruct": "talker",
    "runs/sft-sorting-0/checkpoints/step-60/model": "tiny",
    "runs/tune-grpo-compose-0/best.toml": "run.toml", "runs/first/run.toml": "run.toml",
}  # fmt: skip
"""Models and files of runs that the pages name and this folder lacks."""
OWN = {
    "my_problems.jsonl": EXAMPLES / "capitals.jsonl", "my_environment.py": EXAMPLES / "tank.py",
    "room.py": DOCS.parents[0] / "tests/image_toys.py",
}  # fmt: skip
"""Files that a page has under a name of its own."""
WRITTEN = {
    "my.py": "class Watch:\n    def on_step(self, run, step, metrics): ...\n",
    "my_judges.py": "def close(completions, answers):\n    return [0.0 for _ in completions]\n",
    "answers.py": "def right(completions):\n    return [0.0 for _ in completions]\n",
    "bad.py": "".join(f"def {name}(completions): ...\n" for name in ("score", "short", "slow")),
    "run.toml": "method = 'grpo'\ntask = 'compose'\n",
    "bad.jsonl": next(
        iter(re.findall(r"^\$ cat bad.jsonl\n(.*?)^\$", (DOCS / "your-data.md").read_text(), re.M | re.S))
    ),
    "my_data.jsonl": "".join(
        f'{{"prompt": "When was {name} born?", "answer": "{year}", "passage": "{name} was born in {year}"}}\n'
        for name, year in (("Abel", 1802), ("Gauss", 1777), ("Galois", 1811))
    ),
    "my_rules.py": next(
        iter(re.findall(r"^```python\n([^`]*^class NoLoops[^`]*)^```$", (DOCS / "agents.md").read_text(), re.M))
    ),
    "style.py": "def form(completions):\n    return [0.0 for _ in completions]\n",
}
ELSEWHERE = {"openai/gsm8k": "the hub", "room.py:Camera": "images of a user's", "CarRacing-v3": "an extra",
             "data/umaze/mixed": "what was recorded before", "minigrid:MiniGrid-Empty-5x5-v0": "a package"}  # fmt: skip
"""What is not here to be composed with."""


LOOKS = (["methods"], ["tasks"], ["parts"], ["check"], ["doctor"], ["claims"], ["beds"], ["studies", "show"])
"""How commands begin that change nothing and take no longer than a second or two."""
WORKS = {"run", "plan", "make", "compare"}
"""What such a verb does when one of these follows."""
TEMPLATE = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}assistant: "


class Command(NamedTuple):
    """A command of a page: its words behind `etude`, and whether it is an example that can be typed as it is."""

    words: list[str]
    whole: bool


def commands(page: Path) -> Iterator[Command]:
    """All that begin with `etude`: lines of blocks (of consoles those behind `$`), and what stands in the text."""
    text = page.read_text(encoding="utf-8")
    for kind, block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines() if kind in ("sh", "console") else ():
            typed = line.strip().removeprefix("$ ")
            if typed.startswith("etude ") and (kind == "sh" or line.startswith("$ ")):
                yield Command(shlex.split(typed, comments=True)[1:], True)
    for said in re.findall(r"`(etude [^`]+)`", BLOCK.sub("", text)):
        yield Command(shlex.split(said)[1:], False)


class Enough(Exception):
    """All that can be known before training is known."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that pages name."""
    folder = tmp_path_factory.mktemp("reader")
    for path in (*EXAMPLES.iterdir(), *(EXAMPLES / "first-day").iterdir()):
        if path.is_file():
            shutil.copy(path, folder)
    for name, path in OWN.items():
        shutil.copy(path, folder / name)
    for name, text in WRITTEN.items():
        (folder / name).write_text(text)
    (folder / "brief.txt").write_text("Answer in one word.")
    shutil.copytree(BUILT_IN["tiny"], folder / "talker")
    (folder / "talker/chat_template.jinja").write_text(TEMPLATE)
    log_days: Any = import_source(str(folder / "thermostat.py")).log_days
    log_days(folder / "thermostat.csv", days=30)
    log_days(folder / "august.csv", days=5, first=1000)
    cart = cartpole_columns()
    cart["rewards"][::7] = 0.5  # all alike are refused
    np.savez(folder / "cartpole.npz", **cart)
    np.savez(folder / "pendulum.npz", **pendulum_columns())
    return folder


@pytest.fixture
def reader(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """At the reader's desk: verbs that train stop before they do."""
    from etude.runs import comparing, search, train
    from etude.runs.session import prepare
    from etude.runs.worlds import language

    def ready(made: Any, called: object) -> None:
        prepare(made.method, made.task, made.options)
        raise Enough

    def enough(*_: object, **__: object) -> None:
        raise Enough

    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    for home in ("files", "program_tests"):  # whether programs can be locked in here is not the page's to say
        monkeypatch.setattr(f"etude.tasks.language.{home}.refusal", lambda: None)
    monkeypatch.setattr("etude.curricula.rules.no_sandbox", lambda: None)
    monkeypatch.setattr(train, "_start", ready)
    monkeypatch.setattr(comparing, "jobs_for", enough)
    monkeypatch.setattr(search._Search, "run", enough)
    monkeypatch.setattr(language, "restore", enough)
    return place


def parsed(words: list[str]) -> Any:
    """The function and arguments of a command. Raises what cyclopts raises, of unknown verbs and flags, too."""
    words = [STANDS_FOR.get(w, w.replace("=RUN", f"={BUILT_IN['tiny']}")) for w in words]
    function, bound, *_ = app.parse_args(words, exit_on_error=False, print_error=False)
    return function, bound


def known(words: list[str]) -> None:
    """Raise AssertionError for a verb or a flag that there is not, of words that are not a whole command."""
    if words[0].startswith("-") or words[0] == "VERB":
        return
    assert words[0] in VERBS, f"there is no verb {words[0]}"
    _, apps, _ = app.parse_commands(words)
    deepest = apps[-1]
    arguments = deepest.assemble_argument_collection() if deepest.default_command else ()
    listed = {name for argument in arguments for name in argument.names} | {"--help"}
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert flags <= listed, f"etude {shlex.join(words)}: {flags - listed}"


def go(words: list[str], page: str) -> None:
    """As far as it goes; what is refused is refused in the words of the page."""
    if any(word in ELSEWHERE for word in words):
        return
    function, bound = parsed(words)
    if words[0] not in ("train", "compare", "tune") or "--resume" in words:
        return
    said_of(words, function, bound, page)


def look(words: list[str], page: str) -> None:
    """Do what only looks, and prepare an evaluation of a model; of those of runs there are none here."""
    looks = any(words[: len(first)] == first for first in LOOKS) and not WORKS & {*words[1:2]}
    models = words[0] == "evaluate" and words[1] in ("tiny", "RUN")
    if (looks or models) and not any(word in ELSEWHERE for word in words) and "hard_first.py:hard_first" not in words:
        words = ["evaluate", "RUN", "--task", "compose", *words[2:]] if models and "--task" not in words else words
        said_of(words, *parsed(words), page)


def said_of(words: list[str], function: Any, bound: Any, page: str) -> None:
    """Do it; what is refused is refused in the words of the page."""
    try:
        function(*bound.args, **bound.kwargs)
    except Enough:
        pass
    except EtudeError as error:
        said = " ".join(str(error).split())
        assert said in " ".join(page.split()), f"etude {shlex.join(words)}\n{said}"


@pytest.mark.first("README.md", "concepts.md", "make-a-claim.md")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_of_a_page(page: Path, reader: Path) -> None:
    """Whole ones are parsed, and composed where they train; of those in the text verbs and flags are there."""
    text = page.read_text(encoding="utf-8")
    for command in commands(page):
        if not command.whole:
            known(command.words)
        elif page.name == "coming-from.md":
            parsed(command.words)
        else:
            go(command.words, text)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "coming-from.md"], ids=lambda p: p.name)
def test_what_only_looks_is_done(page: Path, reader: Path) -> None:
    """Listings, checks, explanations; and evaluations as far as their model."""
    for command in commands(page):
        if command.whole:
            look(command.words, page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_commands_of_the_pages_of_methods(reader: Path) -> None:
    """What a method's page says to type trains it."""
    for page in METHODS:
        text = page.read_text(encoding="utf-8")
        for command in commands(page):
            logs = "cartpole.npz" if "cartpole" in command.words else "pendulum.npz"
            words = [logs if word == "LOGS" else word for word in command.words]
            if command.whole and not {"YOURS.jsonl", "pointmaze-umaze", "pointmaze-medium"} & {*words}:
                go(words, text)
