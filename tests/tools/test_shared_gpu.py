"""Several processes compare on one GPU, from the command line: one times at a time."""

import json
import os
import uuid
from itertools import groupby, pairwise

import pytest

from pytest_cutile.timing.gpu.lock import FOLDER
from tests.tools import toy_access, toy_kernel
from tools import compare_kernels

pytestmark = pytest.mark.slow

SUITE = "tests.tools.toy_suite"


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Name a GPU that nobody else uses; return the file of what its timers did."""
    name = f"GPU-test-{uuid.uuid4()}"
    monkeypatch.setenv(toy_access.UUID, name)
    monkeypatch.setenv(toy_access.LOG, str(tmp_path / "log"))
    yield tmp_path / "log"
    for file in FOLDER.glob(f"{name}.*"):
        file.unlink()


def compare(tmp_path, *arguments, timers=toy_access):
    file = tmp_path / "compared.json"
    status = compare_kernels.main(
        [*arguments, "--json", str(file)],
        make_timer=timers.make_timer,
        make_stream_timer=timers.make_stream_timer,
    )
    return status, json.loads(file.read_text())


def test_one_of_several_processes_times_a_whole_case_at_a_time(log, tmp_path):
    status, document = compare(tmp_path, "tests.tools.wrong_suite", SUITE, "--processes", "2")
    assert status == 1
    assert [*document["errors"]] == ["tests.tools.wrong_suite[fp16-32]"]  # and its lock is no obstacle
    assert {found["case"] for found in document["cases"]} == {"fp16-64", "fp16-96"}
    assert document["environment"]["processes_per_gpu"] == "2"
    blocks = sorted(tuple(map(float, line.split())) for line in log.read_text().splitlines())
    assert all(end <= begin for (_, end, _), (begin, _, _) in pairwise(blocks))
    holders = [pid for pid, _ in groupby(pid for _, _, pid in blocks)]
    assert len(holders) <= 2  # nobody comes between the blocks of a case


def test_one_process_takes_no_lock(log, tmp_path):
    status, document = compare(tmp_path, SUITE, "--case", "64")
    assert status == 0
    assert "processes_per_gpu" not in document["environment"]
    assert log.exists()
    assert not [*FOLDER.glob(f"{os.environ[toy_access.UUID]}.*")]


def test_a_gpu_that_cannot_be_locked_is_not_shared(tmp_path):
    status, document = compare(tmp_path, SUITE, "--case", "64", "--processes", "2", timers=toy_kernel)
    assert status == 1
    assert "has no UUID" in document["errors"][f"{SUITE}[fp16-64]"]


def test_less_than_one_process_is_refused(capsys):
    with pytest.raises(SystemExit):
        compare_kernels.main([SUITE, "--processes", "0"])
    assert "--processes: '0' is no integer of at least 1" in capsys.readouterr().err
