"""common/cuda/architectures.cmake: what is compiled for which GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def cmake(tmp_path: Path, *lines: str) -> tuple[int, str]:
    script = tmp_path / "script.cmake"
    script.write_text("\n".join([f'include("{ROOT}/common/cuda/architectures.cmake")', *lines]))
    done = subprocess.run(["cmake", "-P", str(script)], capture_output=True, text=True)
    return done.returncode, done.stderr.strip()  # where message() writes


def says(tmp_path: Path, *lines: str) -> str:
    status, text = cmake(tmp_path, *lines, 'message("${result}")')
    assert status == 0, text
    return text


RELEASED = "80 86 89 90a 120 80-ptx"


def test_without_a_wish_the_build_runs_everywhere(tmp_path: Path):
    wanted = 'flashsteps_requested_architectures(result "")'
    assert says(tmp_path, wanted).split(";") == RELEASED.split()
    assert says(tmp_path, 'flashsteps_requested_architectures(result "86;90a")') == "86;90a"


@pytest.mark.parametrize(
    "needs_sm, requested, expected",
    [
        (80, RELEASED, RELEASED),
        (90, RELEASED, "90a 120 90-ptx"),  # PTX stays, so that newer cards run it
        (90, "80 86 90a 120", "90a 120"),
        (90, "80-ptx 90-ptx", "90-ptx"),
        (90, "80 86", ""),
        (100, "90a 120", "120"),
        ("90a", RELEASED, "90a"),  # wgmma: neither PTX nor a newer GPU runs it
        ("90a", "90", "90a"),
        ("90a", "80 120 90-ptx 100a", ""),
        ("100a", "90a 100 120", "100a"),
    ],
)
def test_a_kernel_is_compiled_for_what_runs_it(
    tmp_path: Path, needs_sm: int | str, requested: str, expected: str
):
    found = says(
        tmp_path,
        f"flashsteps_architectures_from(result {needs_sm} {requested})",
        # As the build asks. It would not notice a result that is unset instead of empty.
        'if(result STREQUAL "")\nset(result none)\nendif()',
    )
    assert found.split(";") == (expected.split() or ["none"])


def test_options_of_nvcc(tmp_path: Path):
    assert says(tmp_path, "flashsteps_gencode(result 86 90a 90-ptx)").split(";") == [
        "SHELL:-gencode arch=compute_86,code=sm_86",
        "SHELL:-gencode arch=compute_90a,code=sm_90a",
        "SHELL:-gencode arch=compute_90,code=compute_90",
    ]


@pytest.mark.parametrize("architecture", ["75", "75-ptx", "sm_90", "9.0", "90a-ptx"])
def test_what_is_no_architecture_or_too_old_is_refused(tmp_path: Path, architecture: str):
    status, text = cmake(tmp_path, f"flashsteps_gencode(result 80 {architecture})")
    assert status != 0 and f"architecture '{architecture}': FlashSteps needs sm_80" in text


@pytest.mark.parametrize(
    "source, expected",
    [
        ('constexpr StepInfo kStep = {\n    .alignment_bytes = 16,\n    .needs_sm = "90",\n};\n', "90"),
        ('constexpr StepInfo kStep = {.needs_sm = "90a"};\n', "90a"),
        ("constexpr StepInfo kStep = {.alignment_bytes = 16};\n", "80"),
        ('constexpr const char* needs_sm = "90";  // of every case\nrun(case_of<1>, needs_sm);\n', "90"),
        ('{.needs_sm = "90"},\n{.needs_sm="90"},\n', "90"),
        ('if (needs_sm == "90") return;\n', "80"),
    ],
)
def test_what_a_source_needs(tmp_path: Path, source: str, expected: str):
    (tmp_path / "kernel.cu").write_text(source)
    assert says(tmp_path, f'flashsteps_needs_sm(result "{tmp_path}/kernel.cu")') == expected


def test_a_source_that_contradicts_itself(tmp_path: Path):
    (tmp_path / "kernel.cu").write_text('{.needs_sm = "90"},\n{.needs_sm = "90a"},\n')
    status, text = cmake(tmp_path, f'flashsteps_needs_sm(result "{tmp_path}/kernel.cu")')
    assert status != 0 and "needs_sm has several values: 90;90a" in " ".join(text.split())


@pytest.mark.parametrize("value", ["sm_90", "9.0", "90f", "90 "])
def test_what_no_gpu_is_called(tmp_path: Path, value: str):
    (tmp_path / "kernel.cu").write_text(f'{{.needs_sm = "{value}"}},\n')
    status, text = cmake(tmp_path, f'flashsteps_needs_sm(result "{tmp_path}/kernel.cu")')
    assert status != 0 and "it must be like" in " ".join(text.split())


@pytest.mark.parametrize(
    "said, status, outcome",
    [
        ("", 0, 0),
        ("ptxas info    : Used 168 registers", 0, 0),
        ("ptxas info    : (C7513) Potential Performance Loss: wgmma.mma_async instructions are serialized", 0, 1),
        ("kernel.cu(3): error", 2, 2),
    ],
)
def test_a_note_about_wgmma_is_an_error_where_warnings_are(said: str, status: int, outcome: int):
    refuse_notes = ROOT / "common/cuda/refuse_notes.sh"
    compiler = ["sh", "-c", 'printf "%s" "$1"; exit "$2"', "nvcc", said, str(status)]
    done = subprocess.run([refuse_notes, *compiler], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (outcome, "", said)
