"""Checkpoints: exact, verified, never silently started over, never a program."""

from __future__ import annotations

import ast
import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import etude
from etude.core.errors import CheckpointError
from etude.runtime import checkpoints
from etude.runtime.checkpoints import load_json, load_tensors, save_json, save_tensors


def save(folder: Path) -> None:
    save_tensors(folder / "w.safetensors", {"w": torch.arange(4.0)})
    (folder / "model").mkdir()
    save_json(folder / "model" / "state.json", {"n": 1})


def three(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    for step in (0, 2, 10):
        checkpoints.write(root, step, save)
    return root


def test_write_and_newest(tmp_path: Path) -> None:
    root = three(tmp_path)
    assert [p.name for p in checkpoints.steps(root)] == ["step-0", "step-2", "step-10"]
    assert checkpoints.newest(root) == (root / "step-10", [])
    record = load_json(root / "step-10" / "COMPLETE")
    assert record["step"] == 10 and set(record["files"]) == {"w.safetensors", "model/state.json"}
    assert record["files"]["model/state.json"]["size"] == (root / "step-10" / "model" / "state.json").stat().st_size
    with pytest.raises(CheckpointError, match="step-10 exists already; a checkpoint is never overwritten"):
        checkpoints.write(root, 10, save)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "flipped byte": (lambda p: flip(p / "w.safetensors"), "the SHA-256 of w.safetensors is not the one recorded"),
    "truncated": (lambda p: (p / "w.safetensors").write_bytes(b"1234567"), r"w.safetensors has 7 bytes instead of \d+"),
    "missing": (lambda p: (p / "model" / "state.json").unlink(), "model/state.json is missing"),
    "no COMPLETE": (lambda p: (p / "COMPLETE").unlink(), "COMPLETE is missing or unreadable"),
    "torn COMPLETE": (lambda p: (p / "COMPLETE").write_text('{"step": 10,'), "COMPLETE is missing or unreadable"),
    "list": (lambda p: (p / "COMPLETE").write_text("[]"), "COMPLETE is missing or unreadable"),
    "outside": (
        lambda p: (p / "COMPLETE").write_text(
            json.dumps({"step": 10, "files": {"../../x": {"size": 1, "sha256": ""}}})
        ),
        "COMPLETE is missing or unreadable",
    ),
    "another's": (
        lambda p: (p / "COMPLETE").write_bytes((p.parent / "step-2" / "COMPLETE").read_bytes()),
        "COMPLETE belongs to step 2",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_falls_back_with_a_sentence(tmp_path: Path, name: str) -> None:
    root, (damage, expected) = three(tmp_path), DAMAGES[name]
    damage(root / "step-10")
    path, sentences = checkpoints.newest(root)
    assert path == root / "step-2"
    assert len(sentences) == 2
    assert sentences[0].startswith(f"{root / 'step-10'} is damaged: ")
    assert re.search(expected, sentences[0])
    assert sentences[1] == "Going back to step-2, the newest checkpoint that is whole."


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_of_any_file_is_seen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("root")
    path = checkpoints.write(root, 3, save)
    file = data.draw(st.sampled_from([path / "w.safetensors", path / "model" / "state.json"]))
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    assert file.name in checkpoints.verify(path)


def test_all_damaged_or_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no checkpoint in"):
        checkpoints.newest(tmp_path / "missing")
    root = three(tmp_path)
    for path in checkpoints.steps(root):
        flip(path / "w.safetensors")
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* is whole\. .*step-10 .*step-2 .*step-0 .*Restore"):
        checkpoints.newest(root)


def test_prune_tidy_and_set_aside(tmp_path: Path) -> None:
    root = three(tmp_path)
    (root / "tmp-11").mkdir()
    (root / "tmp-11" / "w.safetensors").write_text("half")
    checkpoints.tidy(root)
    checkpoints.set_aside(root, after=2)
    checkpoints.prune(root, keep=1)
    assert sorted(p.name for p in root.iterdir()) == ["damaged-10", "step-2"]
    checkpoints.prune(root, keep=0)  # the last one always stays
    assert checkpoints.newest(root)[0].name == "step-2"


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        save(folder)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        checkpoints.write(tmp_path, 1, fail)
    assert list(tmp_path.iterdir()) == []


def test_tensors_are_exact_even_when_they_share_memory(tmp_path: Path) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    tensors = {"x": x, "same": x, "view": x[1:], "turned": x.T, "half": x.bfloat16(), "none": torch.zeros(0),
               "count": torch.tensor(7), "grad": torch.ones(2, requires_grad=True)}  # fmt: skip
    save_tensors(tmp_path / "t.safetensors", tensors)
    loaded = load_tensors(tmp_path / "t.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor), name


def test_json_is_exact(tmp_path: Path) -> None:
    value = {"b": 0.1 + 0.2, "a": [math.inf, -math.inf], "n": np.float32(0.1), "t": torch.tensor([1, 2])}
    save_json(tmp_path / "v.json", value)
    loaded = load_json(tmp_path / "v.json")
    assert loaded == {"b": 0.1 + 0.2, "a": [math.inf, -math.inf], "n": float(np.float32(0.1)), "t": [1, 2]}
    assert list(loaded) == ["b", "a", "n", "t"]  # order is state too
    save_json(tmp_path / "v.json", math.nan)
    assert math.isnan(load_json(tmp_path / "v.json"))
    with pytest.raises(TypeError, match="not object"):
        save_json(tmp_path / "v.json", object())


HUGE = b'{"w":{"dtype":"F32","shape":[1000000000,1000],"data_offsets":[0,4000000000000]}}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"{}" + b"left over",
        struct.pack("<Q", len(HUGE)) + HUGE,
        b"\x80\x04\x95" * 10,
    ],
    ids=["empty", "endless header", "left over", "larger than the file", "pickle"],
)
def test_a_malicious_tensor_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"w.safetensors cannot be read as safetensors"):
        load_tensors(path)


def test_malicious_json_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v.json"
    path.write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match=r"v.json cannot be read as JSON"):
        load_json(path)
    monkeypatch.setattr(checkpoints, "MAX_JSON", 1000)
    with pytest.raises(CheckpointError, match=r"has 200000 bytes; more than 1000 are not read"):
        load_json(path)


FORBIDDEN = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
SUSPICIOUS = re.compile("|".join((*FORBIDDEN, r"torch\s*\.\s*(load|save)", "weights_only")))
"""What a file without any of it need not be parsed for."""


def offences(source: str) -> list[str]:
    """Every use of pickle, in any of its disguises."""
    found: list[str] = []
    if not SUSPICIOUS.search(source):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
            found += [n for n in names if n.split(".")[0] in FORBIDDEN]
        if isinstance(node, ast.Attribute) and node.attr in ("load", "save", "read_pickle"):
            found += {ast.unparse(node)} & {"torch.load", "torch.save", "pd.read_pickle"}
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
            found.append(node.arg)
    return found


def test_no_pickle_path_exists() -> None:
    for path in Path(etude.__file__).parent.rglob("*.py"):
        assert not offences(path.read_text()), path
    assert offences("from torch import *\nimport pickle as p\ntorch.load(x)\nnp.load(x, allow_pickle=True)") == [
        "pickle",
        "torch.load",
        "allow_pickle",
    ]
