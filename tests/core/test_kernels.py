"""Reproducible kernels are asked for before torch loads, by processor, and a run records which."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from etude.core.kernels import LATE, VARIABLE, mode_of, requested, wants_numpy
from etude.runtime import environment

PC = platform.machine().lower() in ("x86_64", "amd64")
WITH = "vendor_id : {}\nflags : fpu sse4_2 avx {}"


@pytest.mark.parametrize(
    ("machine", "description", "mode"),
    (
        ("x86_64", WITH.format("GenuineIntel", "avx2 avx512f"), "AVX512"),
        ("x86_64", WITH.format("GenuineIntel", "avx2"), "AVX2"),
        ("AMD64", WITH.format("AuthenticAMD", "avx2 avx512f"), "AVX2"),
        ("x86_64", WITH.format("AuthenticAMD", ""), "AUTO,STRICT"),
        ("x86_64", "", "AUTO,STRICT"),
        ("arm64", "", None),
        ("aarch64", "BogoMIPS : 50.00", None),
    ),
)
def test_each_processor_has_its_mode(machine: str, description: str, mode: str | None) -> None:
    assert mode_of(machine, description) == mode


def test_numpys_tanh_is_for_processors_whose_maker_mkl_slows_down() -> None:
    assert wants_numpy("x86_64", WITH.format("AuthenticAMD", "avx2 avx512f"))
    assert not wants_numpy("x86_64", WITH.format("AuthenticAMD", ""))
    assert not wants_numpy("x86_64", WITH.format("GenuineIntel", "avx2 avx512f"))
    assert not wants_numpy("x86_64", "")
    assert not wants_numpy("aarch64", WITH.format("AuthenticAMD", "avx2"))


def said(code: str, mode: str | None = None) -> list[str]:
    """What a fresh interpreter prints."""
    known = {k: v for k, v in os.environ.items() if k != VARIABLE} | ({VARIABLE: mode} if mode else {})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=known)
    return done.stdout.split("\n")[:-1]


TORCH = "import sys, types; sys.modules['torch'] = types.ModuleType('torch')"  # loading it takes seconds
ASKED = "; import os, sys; from etude.core.kernels import requested; print(requested()); print('torch' in sys.modules)"


@pytest.mark.slow
@pytest.mark.skipif(not PC, reason="only x86 processors have MKL")
def test_the_mode_is_asked_for_before_torch_loads() -> None:
    mode, loaded = said(f"import etude{ASKED}")
    assert mode in ("AVX512", "AVX2", "AUTO,STRICT") and loaded == "False"
    assert said(f"import etude{ASKED}", "COMPATIBLE")[0] == "COMPATIBLE"  # what the user asked for stands
    assert said(f"{TORCH}; import etude{ASKED}") == [LATE, "True"]
    assert said(f"{TORCH}; import etude{ASKED}", "AVX2")[0] == "AVX2"


@pytest.mark.skipif(not PC, reason="only x86 processors have MKL")
def test_a_run_records_the_mode_and_says_when_it_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "AVX2")
    before = environment.record(0)
    assert before["kernels"] == "AVX2" and before["processor"]
    assert environment.changes(before, environment.record(0)) == []
    monkeypatch.delenv(VARIABLE)
    assert environment.record(0)["kernels"] == LATE == requested()
    (sentence,) = environment.changes(before, {**before, "kernels": "COMPATIBLE"})
    assert sentence == (
        "Since this run started, kernels changed from AVX2 to COMPATIBLE: it does not go on exactly, the last digits "
        "may differ."
    )
    (sentence,) = environment.changes(before, {**before, "processor": "another"})
    assert "processor changed from" in sentence and "does not go on exactly" in sentence
