"""Flags that are fields of a task: how columns are called, how prompts are shown; the same from Python and a file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import Cli, tiny

import etude
from etude.core.errors import ConfigError
from etude.policies.loading import BUILT_IN
from etude.runs.config import read_config

TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant' + ('' if think | default(true) else ' quick') + '>' }}{% endif %}"
)


@pytest.fixture
def talker(tmp_path: Path) -> Path:
    """The tiny model with a chat template."""
    shutil.copytree(BUILT_IN["tiny"], tmp_path / "talker")
    (tmp_path / "talker/chat_template.jinja").write_text(TEMPLATE)
    return tmp_path / "talker"


def asked(folder: Path) -> Path:
    rows = [{"question": f"f{i % 9}(x) a{'bcdef'[i % 5]}>", "label": "ba"} for i in range(12)]
    (folder / "asked.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder / "asked.jsonl"


COLUMNS = ("--columns", "prompt=question,answer=label")


@pytest.mark.slow
def test_what_a_model_sees_is_shown(cli: Cli, tmp_path: Path, talker: Path) -> None:
    asked(tmp_path)
    (tmp_path / "brief.txt").write_text("Be brief.\n")
    flags = ("asked.jsonl", *COLUMNS, "--model", "talker")
    shown = cli("tasks", "show", *flags, "--system", "brief.txt", "--template-arguments", "think=false")
    assert shown.code == 0, shown.err
    first = shown.out.partition("prompt  ")[2].partition("\n")[0]
    assert f"-\n<system>Be brief.\n<user>{first}\n<assistant quick>\n-" in shown.out
    assert "What talker sees of problem 1, through its chat template, " in shown.out
    plain = cli("tasks", "show", *flags, "--chat", "never")
    assert ", as plain text, " in plain.out and f" tokens:\n{'-' * 80}\n{first}\n---" in plain.out
    refused = cli("tasks", "show", "asked.jsonl", *COLUMNS, "--model", "tiny", "--chat", "always")
    assert "chat=always needs a chat template, and the model's tokenizer has none." in refused.err
    wrong = cli("tasks", "show", "asked.jsonl", *COLUMNS, "--model", "talker", "--chat", "sometimes")
    assert "chat must be one of 'auto', 'always', 'never', got 'sometimes'." in " ".join(wrong.err.split())


def test_tasks_that_have_no_such_field_or_text(cli: Cli, tmp_path: Path) -> None:
    assert "There is no field of task compose named 'columns'" in cli("train", "--columns", "prompt=x").err
    assert "is a task of control, where nothing is shown as text" in " ".join(
        cli("tasks", "show", "CartPole-v1", "--model", "tiny").err.split()
    )


def test_the_same_names_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('chat = "never"\ncolumns = {prompt = "question"}\ntemplate-arguments = ["a=1", "b=2"]\n')
    told = read_config(file)
    assert (told["chat"], told["columns"], told["template_arguments"]) == ("never", "prompt=question", "a=1,b=2")


@pytest.mark.slow
def test_shell_python_and_file_make_the_same_run(cli: Cli, tmp_path: Path, talker: Path) -> None:
    asked(tmp_path)
    (tmp_path / "brief.txt").write_text("Be brief.")
    same = ("--system", "brief.txt", "--template-arguments", "think=false", "--out", "one")
    answer = cli("train", "grpo", "--task", "asked.jsonl", *COLUMNS, *tiny(evaluate=0), "--model", "talker", *same)
    assert answer.code == 0, answer.err
    told = (tmp_path / "one/run.toml").read_text()
    assert '"task.columns" = "prompt=question,answer=label"' in told and '"task.system" = "brief.txt"' in told
    first = json.loads((tmp_path / "one/episodes.jsonl").read_text().splitlines()[0])
    assert first["segments"][0] == {"role": "system", "text": "Be brief."}
    assert cli("train", "--config", "one/run.toml", "--quiet", "--out", "two").code == 0
    etude.train(
        config="one/run.toml", set={"task.chat": "auto"}, columns={"prompt": "question", "answer": "label"},
        template_arguments={"think": False}, out="three", quiet=True,
    )  # fmt: skip
    runs = [(tmp_path / name / "episodes.jsonl").read_text() for name in ("one", "two", "three")]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.slow
def test_a_systems_message_that_changed_is_refused(cli: Cli, tmp_path: Path, talker: Path) -> None:
    (tmp_path / "brief.txt").write_text("Be brief.")
    flags = (*tiny(evaluate=0), "--model", "talker", "--system", "brief.txt", "--out", "run")
    assert cli("train", "grpo", *flags).code == 0
    (tmp_path / "brief.txt").write_text("Be long.")
    refused = cli("train", "--resume", "run", "--steps", "3")
    assert refused.code != 0 and "brief.txt changed" in " ".join(refused.err.split())


def test_arguments_that_are_none() -> None:
    with pytest.raises(ConfigError, match="takes NAME=VALUE, as in enable_thinking=false; got 'think'"):
        list(_seen("think"))


def _seen(arguments: str) -> list[str]:
    from etude.runs.seen import seen
    from etude.tasks import resolve_task

    return list(seen(resolve_task("compose").replace(template_arguments=(arguments,)), "tiny"))


def test_how_answers_are_found(cli: Cli, tmp_path: Path) -> None:
    asked(tmp_path)
    refused = cli("train", "grpo", "--task", "asked.jsonl", *COLUMNS, *tiny(), "--answer", "last-number")
    assert "asked.jsonl:1: the answer 'ba' is no number, which last-number compares: choose another" in refused.sentence
    unknown = cli("train", "grpo", "--task", "asked.jsonl", *COLUMNS, *tiny(), "--answer", "last")
    assert "extractor must be one of 'auto', 'boxed', 'last-number', 'choice', 'exact', got 'last'." in unknown.sentence
