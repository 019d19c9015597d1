import sys

import pytest

from pytest_cutile.words.settings import RUN_VARIABLE, SHARERS_VARIABLE
from tests.timing.gpu.fake_nvml import FakeNvml


@pytest.fixture
def fake(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(RUN_VARIABLE, raising=False)
    monkeypatch.setenv(SHARERS_VARIABLE, "1")
    yield fake
    assert fake.open == 0
