import json
import multiprocessing
import re

import msgspec
import pytest

from pytest_cutile.baselines.entries import StaticBaselines, StaticEntry
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.files import read_static, render_static
from pytest_cutile.baselines.store import BaselineStore
from pytest_cutile.tile.static.facts import CaseFacts, LaunchFacts, Note, Site, SpillLine

LAUNCH = LaunchFacts(
    kernel="k",
    grid=(4, 2),
    code_bytes=1200,
    threads=128,
    ctas=1,
    registers=64,
    stack_bytes=16,
    local_bytes=0,
    static_shared_bytes=2048,
    dynamic_shared_bytes=0,
    instruction_count=75,
    instructions={"tensor_core": {"HGMMA": 8}},
    sites=(Site(operation="load", instruction="Ldgsts", file="k.py", line=3, missed=("stride",)),),
    notes=(Note(text="a hint", file="k.py", line=2),),
    spill_lines=(SpillLine(file="k.py", line=4, instructions=2),),
)
UNKNOWN = LaunchFacts(kernel="k", grid=(1,), code_bytes=10)


def entry(*launches: LaunchFacts) -> StaticEntry:
    return StaticEntry(
        facts=CaseFacts(fingerprint="1234", source="abcd", launches=launches or (LAUNCH,)),
        toolchain={"cuda-tile": "1.7.0", "tileiras": "13.4.92"},
        provenance={"by": "pytest-cutile", "commit": "abcdef0", "at": "2026-11-21T10:00:00+00:00"},
    )


@pytest.mark.parametrize("launches", [(LAUNCH,), (UNKNOWN,), (LAUNCH, UNKNOWN), ()])
def test_what_is_written_is_read_back(tmp_path, launches):
    path = tmp_path / "new" / "sm_90-static.json"
    BaselineStore(path.parent, path.parent).record_static("sm_90", "k[c]", lambda _: entry(*launches))
    assert read_static(path, "sm_90") == StaticBaselines(arch="sm_90", entries={"k[c]": entry(*launches)})
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_facts_survive_json():
    facts = entry(LAUNCH, UNKNOWN).facts
    assert msgspec.json.decode(msgspec.json.encode(facts), type=CaseFacts) == facts


def test_no_file_is_none(tmp_path):
    assert read_static(tmp_path / "sm_90-static.json", "sm_90") is None


def test_nothing_is_written_when_there_is_nothing_to_renew(tmp_path):
    path = tmp_path / "sm_90-static.json"
    BaselineStore(path.parent, path.parent).record_static("sm_90", "k[c]", lambda _: None)
    assert not path.exists()


def test_files_are_sorted_and_a_remark_is_a_line():
    text = render_static(StaticBaselines(arch="sm_90", entries={"b[c]": entry(), "a[c]": entry()}))
    assert re.findall(r'^  "(.*)": {$', text, re.MULTILINE) == ["a[c]", "b[c]"]
    assert len([line for line in text.splitlines() if '"operation"' in line]) == 2
    assert max(map(len, text.splitlines())) < 280


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda raw: raw.pop("fingerprint"), "entries / k[c]': Object missing required field `fingerprint`"),
        (lambda raw: raw.pop("toolchain"), "toolchain': it is missing"),
        (
            lambda raw: raw["launches"][0].update(registers=-3),
            "launches / 0 / registers': Expected `int` >= 0",
        ),
        (
            lambda raw: raw["launches"][0].update(registers="many"),
            "launches / 0 / registers': Expected `int | null`, got `str`",
        ),
        (lambda raw: raw["launches"][0].update(colour=1), "colour"),
        (lambda raw: raw.update(launches={}), "launches': Expected `array`, got `object`"),
        (lambda raw: raw["launches"][0].update(threads=0), "launches / 0 / threads': Expected `int` >= 1"),
        (lambda raw: raw["launches"][0].update(registers=10**400), "launches / 0 / registers': "),
        (
            lambda raw: raw["launches"][0].update(instructions=[]),
            "launches / 0 / instructions': Expected `object | null`, got `array`",
        ),
        (
            lambda raw: raw["launches"][0].update(grid=[1, "x"]),
            "launches / 0 / grid / 1': Expected `int`, got `str`",
        ),
        (
            lambda raw: raw["launches"][0]["sites"][0].update(instruction=5),
            "sites / 0 / instruction': Expected `str`, got `int`",
        ),
        (
            lambda raw: raw["launches"][0]["sites"][0].update(shape="wide"),
            "sites / 0 / shape': Expected `str` matching regex",
        ),
        (
            lambda raw: raw["launches"][0]["notes"][0].update(text=[1]),
            "notes / 0 / text': Expected `str`, got `array`",
        ),
        (
            lambda raw: raw["launches"][0]["instructions"]["tensor_core"].update(HGMMA=True),
            "Expected `int`, got `bool`",
        ),
        (lambda raw: raw["launches"][0]["sites"][0].pop("line"), "line"),
        (
            lambda raw: raw["provenance"].update(commit="--upload-pack=x"),
            "provenance / commit': '--upload-pack=x' is no hash of git",
        ),
        (
            lambda raw: raw["provenance"].update(commit="main"),
            "provenance / commit': 'main' is no hash of git",
        ),
        # control characters, which a terminal would obey
        (
            lambda raw: raw["provenance"].update(reason="a\n::set-output name=x::y"),
            "provenance / reason': it has control characters",
        ),
        (
            lambda raw: raw["toolchain"].update(tileiras="\x1b[2J"),
            "toolchain / tileiras': it has control characters",
        ),
        (
            lambda raw: raw["toolchain"].update({"\x1b": "1"}),
            r"toolchain': the key '\x1b' has characters that cannot be seen",
        ),
        (
            lambda raw: raw["launches"][0].update(kernel="k\udc80"),
            "launches / 0 / kernel': it has control characters",
        ),
        (
            lambda raw: raw["launches"][0]["sites"][0].update(missed=["a", "\u202eb"]),
            "missed / 1': it has control characters",
        ),
    ],
)
def test_a_damaged_entry_is_named(tmp_path, damage, said):
    path = tmp_path / "sm_90-static.json"
    BaselineStore(path.parent, path.parent).record_static("sm_90", "k[c]", lambda _: entry())
    data = json.loads(path.read_text())
    damage(data["entries"]["k[c]"])
    path.write_text(json.dumps(data))
    with pytest.raises(BaselineError, match=re.escape(said)):
        read_static(path, "sm_90")


def test_a_key_with_control_characters_is_refused(tmp_path):
    path = tmp_path / "sm_90-static.json"
    BaselineStore(path.parent, path.parent).record_static("sm_90", "k[c]", lambda _: entry())
    path.write_text(path.read_text().replace("k[c]", r"k\u001b[2J[c]"))
    with pytest.raises(
        BaselineError, match=r"'entries': the key 'k\\x1b\[2J\[c\]' has characters that cannot be seen"
    ):
        read_static(path, "sm_90")


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    store = BaselineStore(tmp_path, tmp_path)
    launch = msgspec.structs.replace(LAUNCH, notes=(Note(text="a\nb", file="k.py", line=2),))
    with pytest.raises(BaselineError, match=r"nothing was written, .* notes / 0 / text: it has control char"):
        store.record_static("sm_90", "k[c]", lambda _: entry(launch))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("text", ['{"schema": 1' + "0" * 5000 + "}", "[" * 100_000])
def test_a_file_that_no_reader_of_json_likes(tmp_path, text):
    path = tmp_path / "sm_90-static.json"
    path.write_text(text)
    with pytest.raises(BaselineError, match=r"sm_90-static.json: cannot be read as JSON"):
        read_static(path, "sm_90")


def test_a_file_of_another_architecture(tmp_path):
    path = tmp_path / "sm_90-static.json"
    BaselineStore(path.parent, path.parent).record_static("sm_90", "k[c]", lambda _: entry())
    with pytest.raises(BaselineError, match="holds baselines of sm_90, not of sm_121"):
        read_static(path, "sm_121")


def _record_many(path, first):
    for number in range(first, first + 10):
        BaselineStore(path.parent, path.parent).record_static("sm_90", f"k[{number}]", lambda _: entry())


def test_processes_that_record_at_once_lose_nothing(tmp_path):
    path = tmp_path / "sm_90-static.json"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_record_many, args=(path, first)) for first in (0, 10, 20)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    file = read_static(path, "sm_90")
    assert file is not None
    assert len(file.entries) == 30


def test_where_the_files_are(tmp_path):
    (tmp_path / "sm_121-static.json").touch()
    for location in (tmp_path, tmp_path / "mine.json"):
        store = BaselineStore(location, tmp_path)
        assert store.static_name("sm_90") == "sm_90-static.json"
        assert store.static_architectures() == {"sm_121"}
