import pytest

from pytest_cutile.tile.compiler import toolchain
from pytest_cutile.tile.compiler.toolchain import CompilerMissing


@pytest.fixture(autouse=True)
def _forget():
    toolchain.find_tileiras.cache_clear()
    toolchain._ask.cache_clear()
    yield
    toolchain.find_tileiras.cache_clear()
    toolchain._ask.cache_clear()


def fake_tileiras(folder, answer):
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "tileiras"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    script.chmod(0o755)
    return script


def test_it_is_the_compiler_that_cuda_tile_would_run():
    from cuda.tile._compile import _find_compiler_bin

    assert str(toolchain.find_tileiras()) == _find_compiler_bin().path


def test_architectures_come_from_the_compiler(monkeypatch, tmp_path):
    fake_tileiras(
        tmp_path, "  --gpu-name=<value>  - GPU\n    =sm_121  - x\n    =sm_90   - x\n    =x86_64 - y"
    )
    monkeypatch.setattr(toolchain, "_WHEELS", ("not-installed",))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert toolchain.supported_architectures() == ("sm_90", "sm_121")


def test_cuda_home_comes_after_path(monkeypatch, tmp_path):
    script = fake_tileiras(tmp_path / "bin", "release 13.3, V13.3.7")
    monkeypatch.setattr(toolchain, "_WHEELS", ("not-installed",))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere:/bin")
    assert toolchain.find_tileiras() == script
    assert toolchain.toolchain_versions()["tileiras"] == "13.3.7"


def test_versions_of_the_installed_ones():
    assert set(toolchain.toolchain_versions()) == {"cuda-tile", "tileiras"}
    assert "sm_121" in toolchain.supported_architectures()


def test_no_compiler_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(toolchain, "_compiler_folders", lambda: ["/nowhere"])
    with pytest.raises(
        CompilerMissing, match=r"tileiras is not installed.*pip install 'pytest-cutile\[tileiras\]'"
    ):
        toolchain.supported_architectures()


def test_a_broken_compiler_is_named(monkeypatch, tmp_path):
    script = tmp_path / "tileiras"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(toolchain, "_compiler_folders", lambda: [str(tmp_path)])
    with pytest.raises(CompilerMissing, match=r"did not run.*reinstall"):
        toolchain.supported_architectures()
