"""`pytest-cutile doctor`: what works here is said, and what does not, with what mends it."""

import re
import sys

import pytest

from pytest_cutile.cli import main
from pytest_cutile.commands import doctor
from pytest_cutile.gates import REGISTRY
from pytest_cutile.tile.compiler import toolchain
from tests.timing.gpu.fake_nvml import FakeNvml


@pytest.fixture
def fake(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def gates(text: str) -> dict[str, str]:
    """Return what is said of each gate."""
    _, _, gates = text.partition("Gates on this machine:")
    return {
        name: re.sub(r"\s+", " ", text).strip()
        for name, text in re.findall(r"^  (\w+) +(.*(?:\n {8}.*)*)", gates, re.MULTILINE)
    }


def test_a_machine_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("pytest-cutile ")
    assert "baselines   sm_103-nvidia-b300" in text
    able = gates(text)
    assert able["compile"] == "works"
    assert able["correct"] == "works: kernels are interpreted on the CPU"
    assert able["speed"].startswith("does not work: no GPU: ")


def test_a_gpu_is_described_and_its_condition(fake, capsys):
    fake.nvmlDeviceGetCurrentClocksEventReasons = lambda _: 0x20
    main(["doctor"])
    text = capsys.readouterr().out
    assert "NVIDIA H200 (sm_90, GPU-aa11), and 2 more GPUs" in text
    assert "1980 of 1980 MHz, 91 C" in text
    assert "driver 580.159.04" in text
    assert "the driver has lowered the clocks because of heat" in text


@pytest.mark.usefixtures("fake")
def test_a_torch_that_cannot_use_the_gpu(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this torch can")
    main(["doctor"])
    assert "cannot use the GPU: install a CUDA build of torch" in gates(capsys.readouterr().out)["speed"]


def test_without_the_compiler_three_gates_say_what_to_install(monkeypatch, capsys):
    def missing():
        raise toolchain.CompilerMissing("tileiras is not installed: pip install it")

    monkeypatch.setattr(doctor, "supported_architectures", missing)
    main(["doctor"])
    able = gates(capsys.readouterr().out)
    for gate in ("compile", "static", "correct"):
        assert able[gate] == "does not work: tileiras is not installed: pip install it"


@pytest.mark.parametrize(
    ("module", "package", "extra"), [("torch", "torch", "torch"), ("cuda.tile", "cuda-tile", "tileiras")]
)
def test_without_a_package_every_gate_says_so(monkeypatch, capsys, module, package, extra):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(doctor, "_gpu_problem", lambda: "")
    main(["doctor"])
    for text in gates(capsys.readouterr().out).values():
        assert text == f"does not work: {package} is not installed: pip install 'pytest-cutile[{extra}]'"


def test_a_gate_says_itself_what_it_needs(monkeypatch, capsys):
    energy = REGISTRY[0]._replace(name="energy", needs=("lock", "GPU"))
    monkeypatch.setattr(doctor, "REGISTRY", (*REGISTRY, energy))
    monkeypatch.setattr(doctor, "_gpu_problem", lambda: "no GPU here")
    main(["doctor"])
    assert gates(capsys.readouterr().out)["energy"] == "does not work: no GPU here"


def test_what_is_no_folder_is_refused(tmp_path, capsys):
    assert main(["doctor", f"{tmp_path / 'missing'}"]) == 2
    assert "missing is no folder" in capsys.readouterr().out


def test_baselines_that_cannot_be_read_are_named(tmp_path, capsys):
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines" / "sm_90-nvidia-h200.json").write_text("{")
    assert main(["doctor", f"{tmp_path}"]) == 0
    assert "not valid JSON" in " ".join(capsys.readouterr().out.split())


def test_an_empty_project(tmp_path, capsys):
    main(["doctor", f"{tmp_path}"])
    text = capsys.readouterr().out
    assert "none in baselines/: pytest --update-baselines records them" in text
    assert "0.0 MiB of compiled kernels" in text


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("pytest-cutile ")
