"""The search for failing cases: planted bugs are found in time, and made as small as they can be."""

import itertools
import re
import types

import pytest

import pytest_cutile
from pytest_cutile.gates.search import examples, ones, smaller

pytest.importorskip("hypothesis")

KERNEL = """
import torch

import pytest_cutile


def double(x):
    if x.ndim != 2:
        raise ValueError("x must be a matrix")
    y = x * 2
    PLANT
    return y


def inputs(make_tensor, *, m, n, dtype):
    return (make_tensor((m, n), dtype),)


SPEC = pytest_cutile.KernelSpec(
    name="double",
    launch=double,
    reference=lambda x: x * 2,
    inputs=inputs,
    work=lambda m, n, dtype: pytest_cutile.Work(bytes=4.0 * m * n),
    cases=[
        pytest_cutile.Case(name="a", params={"m": 16, "n": 32, "dtype": "float16"}, speed=False),
        pytest_cutile.Case(name="b", params={"m": 8, "n": 64, "dtype": "bfloat16"}, speed=False),
        pytest_cutile.Case(name="c", params={"m": 8, "n": 48, "dtype": "float32"}, speed=False),
    ],
)
"""

TAIL = "y[:, y.shape[1] // 8 * 8 :] = 3.0"
"""The tile at the end of a row that is no multiple of 8 is lost."""
ONE_DTYPE = "y = y * 1.1 if x.dtype == torch.bfloat16 else y"
WIDE = "y[:, 128:] = 3.0"
"""Whatever is wider than the largest declared case is lost."""
STRIDED = "y = torch.as_strided(x, x.shape, (x.shape[1], 1)).clone() * 2"
"""Strides are taken for granted."""
LATE = "y[1:] = torch.where(y[1:].isnan(), 0, y[1:]) if y.shape[0] > 1 else y[1:]"


@pytest.fixture
def search(project, monkeypatch):
    """Runs a search in this process; an example takes 10 ms, however slow the machine is."""
    (project.path / "mykernels" / "scale.py").unlink()
    ticks = itertools.count()
    clock = types.SimpleNamespace(monotonic=lambda: next(ticks) / 200)
    monkeypatch.setattr("pytest_cutile.gates.search.time", clock)

    def run(plant, *args, kernel=KERNEL):
        project.kernel(kernel.replace("PLANT", plant), name="double")
        return project.run("--search", "60", "-m", "cutile_search", *args, gates="")

    return run


def found(result):
    """Return the declared case that a failed search reports."""
    (line,) = [line.strip() for line in result.outlines if line.strip().startswith("Case(")]
    return line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "case"),
    [
        (TAIL, r"'m': 1, 'n': 1, 'dtype': 'float16'}, speed=False, seed=0, named_inputs=\(\)\),$"),
        (WIDE, r"'m': 1, 'n': 129, 'dtype': 'float16'}, speed=False, seed=0, named_inputs=\(\)\),$"),
        (ONE_DTYPE, r"'m': 1, 'n': 1, 'dtype': 'bfloat16'}, speed=False, seed=\d+, named_inputs=\(\)\),$"),
        (STRIDED, r"'m': 2, 'n': [12], 'dtype': 'float16'}, speed=False, .*seed=\d+, named_inputs=\(\)\),$"),
        (
            LATE,
            r"'m': 2, 'n': [1-9], 'dtype': 'float16'}, speed=False, seed=\d+, named_inputs=\('nan',\)\),$",
        ),
    ],
    ids=["sizes", "wider", "dtype", "strides", "values"],
)
def test_planted_bugs_are_found_and_made_small(search, plant, case):
    result = search(plant)
    result.assert_outcomes(failed=1)
    assert re.search(case, found(result))
    result.stdout.fnmatch_lines(["*double differs from its reference*", "*the smallest that fails*"])


@pytest.mark.slow
def test_what_is_reported_can_be_pasted_and_fails_again(search, project):
    line = found(search(LATE))
    kernel = KERNEL.replace("    cases=[\n", f"    cases=[\n        pytest_cutile.{line}\n").replace(
        "PLANT", LATE
    )
    project.kernel(kernel, name="double")
    result = project.run("-k", "correct and m2-n", "-m", "", gates="")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*correct?m2-n*-float16-nan?*"])


@pytest.mark.slow
def test_the_same_seed_finds_the_same(search):
    assert found(search(ONE_DTYPE)) == found(search(ONE_DTYPE))


def test_a_right_kernel_passes_and_says_how_much_was_tried(search):
    result = search("pass", "--search", "0.5", "--search-seed", "3")
    result.assert_outcomes(passed=1)
    tried = re.search(
        r"^searched with seed 3: (\d+) examples of double passed, (\d+) were refused$",
        result.stdout.str(),
        flags=re.MULTILINE,
    )
    assert tried is not None
    assert int(tried[1]) > 0


def test_what_the_launcher_refuses_is_no_failure(search):
    kernel = KERNEL.replace("PLANT", 'if x.shape[0] % 8: raise ValueError("m must be a multiple of 8")')
    result = search("", "--search", "0.5", kernel=kernel)
    result.assert_outcomes(passed=1)
    assert re.search(
        r"^  \d+ refused: ValueError: m must be a multiple of 8$", result.stdout.str(), flags=re.MULTILINE
    )


def test_five_reasons_are_told(search):
    kernel = KERNEL.replace("PLANT", 'if x.shape[0] > 1: raise ValueError(f"m is {x.shape[0]}")')
    result = search("", "--search", "1", kernel=kernel)
    result.assert_outcomes(passed=1)
    told = re.findall(r"^  \d+ refused: ValueError: m is \d+$", result.stdout.str(), flags=re.MULTILINE)
    assert len(told) == 5
    result.stdout.re_match_lines([r"  \.\.\. for \d+ other reasons$"])


@pytest.mark.parametrize("plant", ["None / 3", "int('m')"])
def test_a_fault_of_the_launcher_is_no_refusal(search, plant):
    result = search(f"if x.shape[1] % 7 == 6: {plant}", "--search", "0.8")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the smallest that fails*", "*Case(name='m1-n6-*"])


def test_a_reference_that_fails_is_no_refusal(search):
    kernel = KERNEL.replace("lambda x: x * 2", "lambda x: x * 2 if x.shape[0] else x.amax()")
    result = search("pass", "--search", "0.5", kernel=kernel)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the reference*raised *", "*found by search*", "*Case(name='m0-n1-*"])


def test_a_domain_of_what_is_no_parameter_is_a_bad_declaration(search):
    kernel = KERNEL.replace("    cases=[\n", "    search=lambda: {'nn': None},\n    cases=[\n")
    result = search("pass", kernel=kernel)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*'double': search has ?'nn'?; the parameters of its cases and its inputs are dtype, m, n*"]
    )


def test_a_search_that_could_try_nothing_is_not_measured(search):
    result = search('raise TypeError("never")', "--search", "0.2", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*not-measured (nothing-tried)*all refused: TypeError: never*"])
    search('raise TypeError("never")', "--search", "0.2", "--perf-strict").assert_outcomes(failed=1)


def test_a_search_that_is_cut_short_says_so(search):
    result = search("y += 1", "--search", "0.004")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*cut short: there may be a smaller one*"])


def test_other_exceptions_are_failures_with_the_example(search):
    empty = 'if x.shape[1] == 0: raise RuntimeError("invalid configuration argument")'
    result = search(empty, "--search", "0.5")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*invalid configuration argument*", "*found by search*, * raised);*", "*'n': 0*"]
    )


@pytest.mark.parametrize("raised", ["RuntimeError('empty')", "ZeroDivisionError"])
def test_what_raises_keeps_no_wrong_result_from_being_found(search, raised):
    """Where sizes are 0, or odd, the launcher raises; a single row is what it gets wrong."""
    plant = f"if 0 in x.shape or x.shape[1] % 2: raise {raised}\n    if x.shape[0] == 1: y += 1"
    result = search(plant, "--search", "0.5")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*double differs from its reference*", "*Case(name='m1-n2-float16'*"])


def test_a_wrong_result_of_size_0_is_found_last(search):
    late = "if x.shape[0] == 0: y = torch.zeros((1, x.shape[1]))"
    result = search(late, "--search", "0.5")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*(seed 0, *[1-9][0-9] examples passed, *", "*Case(name=*'m': 0, *"])


def test_sizes_of_0_are_not_drawn_first():
    hypothesis = pytest.importorskip("hypothesis")
    spec = pytest_cutile.KernelSpec(
        name="k",
        launch=len,
        reference=len,
        inputs=lambda *_, **__: (),
        cases=[
            pytest_cutile.Case(
                name="a",
                params={"m": 3, "shape": (4, 5), "shift": 0, "is_causal": False},
                speed=False,
            )
        ],
    )

    def drawn(*, empty):
        made = []
        phases = (hypothesis.Phase.generate,)
        options = hypothesis.settings(max_examples=50, database=None, derandomize=True, phases=phases)

        @options
        @hypothesis.given(examples(spec, "sm_90", empty=empty))
        def draw(example):
            made.append(example)

        draw()
        return [example.params for example in made]

    def zeros(params):
        return params["m"] == 0 or 0 in params["shape"]

    with_sizes, with_empty = drawn(empty=False), drawn(empty=True)
    assert not any(map(zeros, with_sizes))
    assert any(map(zeros, with_empty))
    assert any(params["shift"] == 0 for params in with_sizes)  # as declared: it is no size


def test_the_first_examples_are_cases_with_one_size_of_1():
    spec = pytest_cutile.KernelSpec(
        name="k",
        launch=len,
        reference=len,
        inputs=lambda *_, **__: (),
        search=lambda: {"n": None},
        cases=[
            pytest_cutile.Case(name="large", params={"m": 9, "shape": (9, 9), "dtype": "bf16", "n": 9}),
            pytest_cutile.Case(
                name="a", params={"m": 3, "shape": (4, 5), "dtype": "bf16", "n": 8}, speed=False
            ),
            pytest_cutile.Case(
                name="b", params={"m": 1, "shape": (4, 5), "dtype": "bf16", "n": 8}, speed=False
            ),
        ],
    )
    tried = [(example.params["m"], example.params["shape"]) for example in ones(spec, "sm_90")]
    assert tried == [(1, (4, 5)), (3, (1, 5)), (3, (4, 1)), (1, (1, 5)), (1, (4, 1))]
    first = next(ones(spec, "sm_90"))
    made = [example.params["shape"] for example in smaller(first, fixed={"n"})]
    assert made == [(1, 5), (2, 5), (3, 5), (4, 1), (4, 2), (4, 3), (4, 4)]


def test_a_spec_may_say_what_may_vary(search):
    kernel = KERNEL.replace("    cases=[\n", "    search=domain,\n    cases=[\n").replace(
        "SPEC =",
        "def domain():\n    from hypothesis import strategies as st\n\n"
        '    return {"n": st.integers(3, 9).map(lambda n: 8 * n)}\n\n\nSPEC =',
    )
    search(TAIL, "--search", "0.5", kernel=kernel).assert_outcomes(passed=1)
    assert "'m': 1, 'n': 64" in found(search(ONE_DTYPE, kernel=kernel))  # as declared: not each size may be
    assert "'m': 1, 'n': 24" in found(search("if x.shape[1] == 24: y += 1", kernel=kernel))


def test_nothing_is_searched_unasked(project):
    project.run("-m", "cutile_search", gates="").assert_outcomes(deselected=4)


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan"])
def test_a_budget_is_a_positive_number(project, seconds):
    result = project.run(f"--search={seconds}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--search *: expected a positive number of seconds*"])


def test_a_seed_without_a_search_is_a_usage_error(project):
    result = project.run("--search-seed=3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--search-seed 3 is of a search: it needs --search SECONDS*"])


def test_without_hypothesis_it_is_a_usage_error(project, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: None if name == "hypothesis" else find(name, *args)
    )
    result = project.run("--search", "1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pip install 'pytest-cutile?search?'*"])
