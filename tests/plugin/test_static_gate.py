"""The gate `static` on real kernels with the real compiler, on a machine without a GPU: planted faults."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from pytest_cutile.tile.compiler import toolchain
from tests.plugin.forked import run_forked

pytestmark = pytest.mark.slow

# -- what must alarm ----------------------------------------------------------------------------------


def test_a_tile_so_large_that_it_spills(static):
    static.record()
    static.change(("64, 64, 32", "256, 256, 32"))
    result = static.run()
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"E   mm\[n256\] for sm_90 compiles to something worse: predicted .* \(and \d+ more\)",
            r"  worse       spills, in bytes per thread: 0 -> \d{3,}",
            r" +local loads and stores near mykernels/mm\.py:\d+ \(\d+\), mykernels/mm",
            r"  cause       its source, or what it is specialized for, changed; same toolchain \(",
            r".*tileiras",
            r"  baseline    baselines/sm_90-static\.json",
            r"  pytest .*::static\[n256-sm_90\].* --arch sm_90 ",
            r"mm .*regression \(worse-code\)",
        ]
    )


def test_code_of_a_kernel_that_is_wrong_is_neither_compared_nor_recorded(static):
    static.record()
    before = static.baseline.read_text()
    static.change(("acc.astype(C.dtype)", "(acc + 1.0).astype(C.dtype)"))
    result = static.run("--update-baselines", "-rs", gates="cutile_correct or cutile_static")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*(wrong-result): the gate correct fails, so the case's compiled code is *"])
    assert static.baseline.read_text() == before
    static.run("--update-baselines").assert_outcomes(passed=1)  # nobody has asked whether it is right
    assert static.baseline.read_text() != before


def test_a_worker_that_records_checks_what_another_one_has_checked(static):
    static.change(("acc.astype(C.dtype)", "(acc + 1.0).astype(C.dtype)"))
    options = ("-n", "2", "-p", "no:benchmark", "--update-baselines", "-rs")
    result = static.run(*options, gates="cutile_correct or cutile_static")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*(wrong-result): the gate correct fails, so the case's compiled code is *"])
    result.stdout.no_fnmatch_line("*recorded*")
    assert not static.baseline.exists()
    static.change()
    result = static.run(*options, gates="cutile_correct or cutile_static")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["correct was checked by interpretation on the CPU: 1 case"])
    assert static.baseline.exists()


def test_an_accumulator_that_leaves_the_tensor_cores(static):
    static.record()
    static.change(("ct.mma(a, b, acc)", "ct.mma(a.astype(ct.float32), b.astype(ct.float32), acc)"))
    result = static.run()
    result.assert_outcomes(failed=1)
    line = static.line_of("ct.mma")
    result.stdout.re_match_lines(
        [
            r"  worse .*tensor-core instructions: HGMMA -> none",
            rf"  worse .*mykernels/mm\.py:{line}: mma: Tensor-core SM90 64x64x16 -> FMA 1x1x1",
        ]
    )


@pytest.mark.parametrize(
    ("old", "new", "becomes", "why"),
    [
        pytest.param(
            'return make_tensor((n, n), "float16"),',
            'return make_tensor((n, n + 1), "float16")[:, :n],',
            "Global-memory load",
            "stride not 16-byte aligned",
            id="stride",
        ),
        pytest.param(
            "(TM, TK), padding_mode=ct.PaddingMode.ZERO",
            "(TM, TK), padding_mode=ct.PaddingMode.NEG_INF",
            "Ldgsts",
            "TMA only supports zero padding",
            id="padding",
        ),
    ],
)
def test_a_load_that_loses_tma(static, old, new, becomes, why):
    static.record()
    static.change((old, new))
    result = static.run()
    result.assert_outcomes(failed=1)
    line = static.line_of("a = ct.load")
    result.stdout.re_match_lines([rf"  worse .*mykernels/mm\.py:{line}: load: TMA Load 32x64 -> {becomes}"])
    assert why in result.stdout.str()
    assert f"mykernels/mm.py:{static.line_of('b = ct.load')}: load" not in result.stdout.str()


MANY_BLOCKS = (("64, 64, 32", "128, 128, 64"), ('{"n": 256}', '{"n": 4096}'))
TWO_FIT = ("HINTS = {}", "HINTS = {'occupancy': 2}")


def test_an_occupancy_hint_that_is_dropped(static):
    static.change(*MANY_BLOCKS, TWO_FIT)
    static.record()
    static.change(*MANY_BLOCKS)
    result = static.run()
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"  worse .*blocks per multiprocessor: 2 \(16 warps\) -> 1 \(8 warps\)",
            r" +limited by registers and shared memory",
        ]
    )


# -- what must not ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param(
            [("acc", "total"), ("a = ct.load", "left = ct.load"), ("(a, b, total)", "(left, b, total)")],
            id="renamed",
        ),
        pytest.param([("import cuda.tile as ct\n", "import cuda.tile as ct\n\n\n\n\n\n\n")], id="moved"),
        pytest.param([("    acc = ct.zeros", "    # the sum\n    acc = ct.zeros")], id="comment"),
        pytest.param([("mm_kernel", "product_kernel")], id="renamed_kernel"),
        pytest.param(
            [
                ("acc = ct.mma(a, b, acc)", "acc = add(a, b, acc)"),
                ("@ct.kernel", "def add(a, b, acc):\n    return ct.mma(a, b, acc)\n\n\n@ct.kernel"),
            ],
            id="helper",
        ),
    ],
)
def test_changes_without_meaning_leave_a_case_unchanged(static, pairs):
    static.record()
    static.change(*pairs)
    result = static.run("--perf-strict")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["mm * no *s"])


def test_the_fingerprint_is_the_same_in_another_folder_and_process(static):
    static.record()
    first = static.entry()
    static.baseline.unlink()
    moved = static.project.path / "elsewhere"
    static.project.path.joinpath("mykernels").rename(moved)
    (moved / "mm.py").rename(moved / "product.py")
    ini = (static.project.path / "tox.ini").read_text().replace("mykernels", "elsewhere")
    (static.project.path / "tox.ini").write_text(ini)
    result = run_forked(static.project.pytester, "-m", "cutile_static", "--update-baselines")
    result.assert_outcomes(passed=1)
    assert (static.entry()["fingerprint"], static.entry()["source"]) == (
        first["fingerprint"],
        first["source"],
    )


# -- who is to blame ----------------------------------------------------------------------------------


def earlier_toolchain(entry):
    entry["toolchain"] = {"cuda-tile": "1.7.0", "tileiras": "13.3.36"}


def fewer_registers(entry):
    """So few that twice the blocks would fit."""
    entry["fingerprint"] = "0" * 16
    entry["launches"][0]["registers"] //= 2


def test_the_same_source_made_worse_by_another_compiler(static):
    static.change(MANY_BLOCKS[1])
    static.record()
    static.edit_baseline(lambda entry: (earlier_toolchain(entry), fewer_registers(entry)))
    result = static.run()
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"  worse       blocks per multiprocessor: \d+ .* -> \d+ .* \(limited by registers\)",
            r"  cause {7}another toolchain \(tileiras: 13\.3\.36 -> \S+\); the kernel's source is the same",
            r"mm .*regression \(worse-compiler\)",
            r"toolchain, since the static baselines: tileiras: 13\.3\.36 -> \S+: 1 worse-compiler",
        ]
    )


def test_another_source_and_another_compiler(static):
    static.change(MANY_BLOCKS[1])
    static.record()
    static.edit_baseline(lambda entry: (earlier_toolchain(entry), fewer_registers(entry)))
    static.change(MANY_BLOCKS[1], ("acc.astype(C.dtype)", "(acc + 1.0).astype(C.dtype)"))
    result = static.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["  cause       another toolchain (*); the kernel's source changed, too"])


def test_another_compiler_that_changes_nothing_is_said_in_the_summary(static):
    static.record()
    static.edit_baseline(earlier_toolchain)
    result = static.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["mm * no *s", "toolchain, since the static baselines: tileiras: 13.3.36 -> *: 1 unchanged"]
    )
    static.record()
    assert static.entry()["toolchain"]["tileiras"] != "13.3.36"
    assert "toolchain, since" not in static.run().stdout.str()


def test_two_loads_that_change_places_are_not_worse(static):
    """Their remarks change places, too: the compiler treats each as before."""
    lines = [
        "        a = ct.load(A, (i, k), (TM, TK), padding_mode=ct.PaddingMode.NEG_INF)\n",
        "        b = ct.load(B, (k, j), (TK, TN), padding_mode=ct.PaddingMode.ZERO)\n",
    ]
    not_tma = ("(TM, TK), padding_mode=ct.PaddingMode.ZERO", "(TM, TK), padding_mode=ct.PaddingMode.NEG_INF")
    static.change(not_tma)
    static.record()
    static.change(not_tma, ("".join(lines), "".join(reversed(lines))))
    static.run().assert_outcomes(passed=1)


# -- recording ----------------------------------------------------------------------------------------


def test_a_worse_entry_is_recorded_only_with_a_reason(static):
    static.record()
    before = static.baseline.read_text()
    static.change(("ct.mma(a, b, acc)", "ct.mma(a.astype(ct.float32), b.astype(ct.float32), acc)"))
    result = static.run("--update-baselines")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not recorded: *is worse; give --reason TEXT to accept that"])
    assert static.baseline.read_text() == before
    static.run("--update-baselines", "--reason", "float32 is wanted").assert_outcomes(passed=1)
    assert static.entry()["provenance"]["reason"] == "float32 is wanted"
    static.run("--perf-strict").assert_outcomes(passed=1)


def printed_command(result):
    (command,) = re.findall(r"^  (pytest (?:.*\\\n)*.*)$", result.stdout.str(), re.MULTILINE)
    return shlex.split(command.replace("\\\n", ""))[1:]


WORSE = ("ct.mma(a, b, acc)", "ct.mma(a.astype(ct.float32), b.astype(ct.float32), acc)")


def test_the_printed_command_accepts_a_worse_kernel(static):
    path = static.project.path
    (path / "tox.ini").rename(path / "other.ini")
    options = ("-c", "other.ini", "--perf-baseline=elsewhere")
    static.run("--update-baselines", *options)
    static.change(WORSE)
    result = static.run(*options)
    result.assert_outcomes(failed=1)
    static.run(*printed_command(result), gates="").assert_outcomes(passed=1)
    static.run(*options, "--perf-strict").assert_outcomes(passed=1)


def test_beside_a_revision_the_printed_command_repeats_the_failure(static):
    static.project.commit()
    static.change(WORSE)
    result = static.run("--perf-baseline=git:HEAD")
    result.assert_outcomes(failed=1)
    command = printed_command(result)
    assert "--update-baselines" not in command
    static.run(*command, gates="").assert_outcomes(failed=1)


TWICE = ("    ct.launch(", "    for _ in range(2):\n        ct.launch(")


def test_a_better_entry_is_an_improvement_and_recorded_unasked(static):
    static.change(TWICE)
    static.record()
    static.change()
    result = static.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["mm *1 better *s"])
    result = static.run("--update-baselines")
    result.stdout.re_match_lines(
        [
            r"mm\[n256\] for sm_90: recorded anew in baselines/sm_90-static\.json",
            r"    better: predicted 2\.0x faster: launches: ",
        ]
    )
    static.run().stdout.fnmatch_lines(["mm * no *s"])


def test_a_kernel_that_is_launched_twice(static):
    static.record()
    static.change(TWICE)
    result = static.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E   mm[[]n256[]] for sm_90 compiles to something worse: predicted 2.0x slower: *"]
    )


COPIES = ("    c = torch.empty(", "    a, b = a.clone(), b.clone()\n    c = torch.empty(")


def test_a_launcher_that_copies_its_inputs(static):
    """The kernel is the same, and its launch."""
    static.change(*MANY_BLOCKS)
    static.record()
    static.change(*MANY_BLOCKS, COPIES)
    result = static.run("--update-baselines")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"E   mm\[n256\] for sm_90 compiles to .* worse: predicted 1\.\dx slower: torch operations",
            r"  different   bytes that torch operations move: 0 -> 134217728",
            r".*not recorded: predicted .* is worse; give --reason TEXT to accept that",
        ]
    )
    static.run("--changed-only").assert_outcomes(failed=1)
    static.change(
        *MANY_BLOCKS, ("    c = torch.empty(", "    a, b = a.view(a.shape), b[:]\n    c = torch.empty(")
    )
    static.run("--perf-strict").assert_outcomes(passed=1)
    static.run("--changed-only").assert_outcomes(deselected=4)


def test_more_blocks_alone_are_no_improvement(static):
    static.change(*MANY_BLOCKS)
    static.record()
    static.change(*MANY_BLOCKS, TWO_FIT)
    result = static.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["mm *1 other code *s"])
    before = static.baseline.read_text()
    result = static.run("--update-baselines")
    result.stdout.fnmatch_lines(["*not recorded: blocks per multiprocessor: *alone is no improvement; *"])
    assert static.baseline.read_text() == before
    static.run("--update-baselines", "--reason", "it hides more").assert_outcomes(passed=1)
    assert static.entry()["provenance"]["reason"] == "it hides more"


def test_a_kernel_whose_work_cannot_be_counted_is_compared_by_its_other_facts(static):
    static.record()
    static.project.pytester.makeconftest(
        """
        from pytest_cutile.tile.interpreter.executed_cache import ExecutedCache

        def count(self, job, launch):
            raise IndexError("an operation that nobody has seen")

        ExecutedCache.count = count
        """
    )
    said = "no time is predicted of mm_kernel: what it executes could not be counted (IndexError: an oper*"
    result = run_forked(static.project.pytester, "-m", "cutile_static")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["mm * no *s", said])
    static.change(TWICE, ("64, 64, 32", "256, 256, 32"))
    result = run_forked(static.project.pytester, "-m", "cutile_static", "-n", "1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   *something worse: spills, in bytes per thread: 0 -> *", said])


def test_a_loop_whose_length_nobody_knows_any_more_is_not_compared(static):
    static.record()
    loop = "    for k in range(ct.cdiv(A.shape[1], TK)):\n"
    static.change(
        (loop, "    k = 0\n    while k < ct.cdiv(A.shape[1], TK):\n"),
        ("acc = ct.mma(a, b, acc)", "acc = ct.mma(a, b, acc)\n        k = k + 1"),
    )
    result = static.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*not compared: executed: what it executes depends on data, or cannot be *"])
    static.run("--perf-strict").assert_outcomes(failed=1)


@pytest.mark.parametrize("change", ["remove", "count otherwise"])
def test_an_entry_gets_the_executed_operations_of_today(static, change):
    """Of the same code: an entry may have none, or those that another version counted."""
    static.record()
    recorded = static.entry()["launches"]
    for launch in (changed := static.entry())["launches"]:
        launch.pop("executed") if change == "remove" else launch["executed"].update(integer=1)
    static.edit_baseline(lambda entry: entry.update(launches=changed["launches"]))
    static.run("--perf-strict").stdout.fnmatch_lines(["mm * no *s"])
    static.run("--update-baselines")
    assert static.entry()["launches"] == recorded


def test_recording_again_changes_nothing(static):
    static.record()
    before = static.baseline.read_text()
    static.record()
    assert static.baseline.read_text() == before


def test_other_entries_stay(static):
    static.record()
    data = json.loads(static.baseline.read_text())
    data["entries"]["another[case]"] = data["entries"]["mm[n256]"]
    static.baseline.write_text(json.dumps(data))
    static.change(("acc.astype(C.dtype)", "(acc + 1.0).astype(C.dtype)"))
    static.record()
    assert set(json.loads(static.baseline.read_text())["entries"]) == {"another[case]", "mm[n256]"}


def test_what_is_undecided_fails_when_strict(static):
    result = static.run("--perf-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no-baseline (no-file): baselines/sm_90-static.json does not exist*"])
    static.record()
    data = json.loads(static.baseline.read_text())
    data["entries"] = {}
    static.baseline.write_text(json.dumps(data))
    result = static.run("--perf-strict")
    result.stdout.fnmatch_lines(
        ["*no-baseline (no-entry): *has no entry for mm[[]n256[]]; record it: pytest*"]
    )
    result = static.run("--perf-strict", "--perf-baseline", "none")
    result.stdout.fnmatch_lines(["*no-baseline (baselines-off)*"])


# -- bad input ----------------------------------------------------------------------------------------


def test_what_does_not_compile_is_said_once(static):
    static.record()
    static.change(("ct.mma(a, b, acc)", "ct.mma(a, b, nothing)"))
    result = static.run("-rs", gates="cutile_compile or cutile_static")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["*not-measured (not-compiled): there is no compiled kernel, see the gate compile*"]
    )
    failures = result.stdout.str().partition("= FAILURES =")[2].partition("= short test summary")[0]
    assert failures.count("nothing") == 2  # the message, and the line it quotes
    assert "Traceback" not in failures
    assert "pytest_cutile/" not in failures


def test_what_does_not_compile_fails_when_nobody_else_says_so(static):
    static.change(("ct.mma(a, b, acc)", "ct.mma(a, b, nothing)"))
    result = static.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*mykernels/mm.py:{static.line_of('ct.mma')}*"])


def test_a_launcher_that_raises_shows_its_own_traceback(static):
    static.change(("    c = torch.empty", "    raise RuntimeError('no luck')\n    c = torch.empty"))
    result = static.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*RuntimeError: no luck"])


@pytest.mark.parametrize(
    ("tool", "package", "lost", "kept"),
    [
        ("cuobjdump", "nvidia-cuda-cuobjdump", "registers", "tensor-core instructions: HGMMA -> none"),
        ("nvdisasm", "nvidia-cuda-nvdisasm", "instructions", "mma: Tensor-core SM90 64x64x16 -> FMA 1x1x1"),
    ],
)
def test_without_a_tool_the_rest_is_compared(static, monkeypatch, tool, package, lost, kept):
    static.record()
    find = toolchain.find_tool

    def missing(name):
        if name == tool:
            raise toolchain.ToolMissing(
                f"{name} is not installed: pip install 'pytest-cutile[static]' (the package {package})"
            )
        return find(name)

    monkeypatch.setattr(toolchain, "find_tool", missing)
    toolchain.tool_version.cache_clear()
    try:
        # The same code needs no tool.
        static.run("--perf-strict").assert_outcomes(passed=1)
        static.change(("acc.astype(C.dtype)", "(acc + 1.0).astype(C.dtype)"))
        result = static.run("--perf-strict")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"*inconclusive (incomplete): not compared: {lost}*{package}*"])
        result = static.run("--update-baselines")
        result.stdout.fnmatch_lines([f"*not recorded: {lost}*{package}*"])
        static.change(("ct.mma(a, b, acc)", "ct.mma(a.astype(ct.float32), b.astype(ct.float32), acc)"))
        result = static.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"*worse *{kept}", "*unknown *", f"*{package}*"])
    finally:
        toolchain.tool_version.cache_clear()


def test_an_old_compiler_without_remarks(static, monkeypatch):
    static.record()
    monkeypatch.setattr("pytest_cutile.tile.compiler.cutile.makes_remarks", lambda: False)
    static.change(("ct.mma(a, b, acc)", "ct.mma(a.astype(ct.float32), b.astype(ct.float32), acc)"))
    result = static.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*worse *tensor-core instructions: HGMMA -> none",
            "*unknown *the installed tileiras makes no remarks*",
        ]
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<<<<<<< HEAD\n", "merge conflict"),
        ('{"schema": 99, "arch": "sm_90", "entries": {}}', "schema 99, this release reads 1"),
        ('{"schema": 1, "arch": "sm_121", "entries": {}}', "holds baselines of sm_121, not of sm_90"),
        (
            '{"schema": 1, "arch": "sm_90", "entries": {"mm[n256]": {"fingerprint": 3}}}',
            "entries / mm[[]n256[]]",
        ),
    ],
)
def test_a_bad_file_fails_and_is_not_replaced(static, text, said):
    static.baseline.parent.mkdir()
    static.baseline.write_text(text)
    for args in ([], ["--update-baselines"]):
        result = static.run(*args)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"*sm_90-static.json*{said}*"])
    assert static.run("--changed-only").ret == pytest.ExitCode.USAGE_ERROR
    assert static.baseline.read_text() == text


def test_a_file_of_static_baselines_is_no_place_for_baselines(static):
    static.record()
    result = static.run("--perf-baseline=baselines/sm_90-static.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*static baselines are a file per architecture; give their folder"])


def test_remarks_that_cannot_be_read_are_unknown(static, monkeypatch):
    static.record()
    from pytest_cutile.tile.compiler import cutile

    original = cutile.run_tileiras

    def garbled(*args, **options):
        return original(*args, **options)[0], "--- !Passed {"

    monkeypatch.setattr(cutile, "run_tileiras", garbled)
    static.change(("acc.astype(C.dtype)", "(acc + 1.0).astype(C.dtype)"))
    result = static.run("--perf-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*inconclusive (incomplete): not compared: sites: *cannot be read*"])


def test_an_error_of_several_cases_is_said_in_full_once(static):
    static.change(("ct.mma(a, b, acc)", "ct.mma(a, b, nothing)"))
    result = static.run("--arch", "sm_90,sm_121", gates="cutile_compile")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*for sm_90: Undefined variable nothing used", "*the same in n256 sm_121 *"])
    assert result.stdout.str().count("acc = ct.mma(a, b, nothing)") == 1


def test_without_a_compiler_the_kernel_is_not_blamed(static, monkeypatch):
    def missing():
        raise toolchain.CompilerMissing("tileiras is not installed: pip install 'pytest-cutile[tileiras]'")

    monkeypatch.setattr(toolchain, "find_tileiras", missing)
    toolchain._ask.cache_clear()
    try:
        result = static.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*tileiras is not installed: pip install*", "mm *no compiler"])
    finally:
        toolchain._ask.cache_clear()


def test_all_says_which_baselines_it_cannot_compare_with(static):
    static.record()
    (static.baseline.parent / "sm_75-static.json").write_text("{}")
    result = static.run("--arch", "all", "-k", "sm_90")
    result.stdout.fnmatch_lines(["cutile: not compared: sm_75: it has static baselines, but the installed *"])


# -- many at once -------------------------------------------------------------------------------------


def test_with_xdist_a_regression_fails_the_same(static):
    static.record()
    static.change(("ct.mma(a, b, acc)", "ct.mma(a.astype(ct.float32), b.astype(ct.float32), acc)"))
    result = run_forked(static.project.pytester, "-n", "1", "-m", "cutile_static", "--kernel-report")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["    registers per thread * 255", "mm *regression (worse-code)"])


def test_two_runs_at_once_share_a_cache(static):
    static.record()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cutile_static", "--perf-strict"]
    static.change(("import cuda.tile as ct", "import cuda.tile as ct  # another cache entry\n"))
    runs = [
        subprocess.Popen(command, cwd=static.project.path, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for run in runs:
        output, _ = run.communicate(timeout=120)
        assert run.returncode == 0, output


def test_a_corrupt_cache_entry_is_made_again(static):
    static.run("--update-baselines").assert_outcomes(passed=1)
    cache = static.project.path / ".pytest_cache" / "d" / "cutile"
    entries = [path for path in cache.rglob("*.*") if path.is_file()]
    assert {path.suffix for path in entries} == {".cubin", ".json"}
    for path in entries:
        path.write_bytes(path.read_bytes()[:-7])
    static.run("--perf-strict").assert_outcomes(passed=1)


# -- the report ---------------------------------------------------------------------------------------


def test_the_kernel_report(static):
    result = static.run("--kernel-report", "--arch", "sm_80,sm_90")
    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines(
        [
            r"mm: n256",
            r"  mm_kernel",
            r" +sm_80 +sm_90",
            r" +registers per thread +\d+ +\d+",
            r" +blocks per SM +\d+ +\d+",
            r" +tensor-core instructions +\d+ HMMA +\d+ HGMMA",
            rf" +mm\.py:{static.line_of('ct.mma')} mma .* Tensor-core SM80 16x8x16 +Tensor-core SM90 64x64",
        ]
    )


def test_a_report_of_nothing_says_so(static):
    result = static.run("--kernel-report", gates="cutile_compile")
    result.stdout.fnmatch_lines(["nothing: no test of the static gate compiled a kernel (is it deselected?)"])
