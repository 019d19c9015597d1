import dataclasses
import inspect

import pytest

from pytest_cutile import Case, CheckKernel, CheckOptions, KernelSpec, ModelSpec, SpecError, Work
from pytest_cutile.correctness.check import check_kernel
from pytest_cutile.words.input_names import REVEALING
from pytest_cutile.words.spec import SHARES


def spec(**changes):
    fields = {
        "name": "copy",
        "launch": lambda x: x,
        "reference": lambda x: x,
        "inputs": lambda make_tensor, n: (make_tensor((n,), "float32"),),
        "cases": [Case(name="n8", params={"n": 8})],
    }
    return KernelSpec(**{**fields, **changes})


def test_no_cases_is_an_error_that_says_what_to_do():
    with pytest.raises(SpecError, match=r"'copy' declares no cases.*at least one Case"):
        spec(cases=[])


def test_duplicate_case_names_are_an_error():
    with pytest.raises(SpecError, match="two cases named 'n8'"):
        spec(cases=[Case(name="n8"), Case(name="n8")])


@pytest.mark.parametrize("name", ["", "a b", "a[b]", "a::b", "a/b"])
def test_a_case_name_must_fit_into_a_test_id(name):
    with pytest.raises(SpecError, match="cannot be part of a test id"):
        spec(cases=[Case(name=name)])


def test_work_and_reduction_take_the_parameters_of_the_case():
    case = Case(name="n8", params={"n": 8})
    declared = spec(work=lambda n: Work(bytes=8.0 * n), reduction=lambda n: n)
    assert declared.work_of(case) == Work(bytes=64.0)
    assert declared.reduction_of(case) == 8
    assert spec().work_of(case) == Work()
    assert spec(reduction=5).reduction_of(case) == 5


@pytest.mark.parametrize("count", [float("nan"), float("inf"), -1.0])
def test_work_is_a_finite_count(count):
    with pytest.raises(SpecError, match="bytes must be a finite count"):
        Work(bytes=count)


def test_an_unknown_dtype_would_switch_the_limit_off():
    with pytest.raises(SpecError, match=r"unknown dtype 'bf16'; known are .*bfloat16"):
        Work(flops=1.0, dtype="bf16")
    assert Work(flops=1.0, dtype="torch.float16").dtype == "float16"


def test_cases_may_be_a_generator():
    assert len(spec(cases=(Case(name=f"n{n}", params={"n": n}) for n in range(3))).cases) == 3


def test_a_function_that_does_not_say_what_it_takes_is_believed():
    assert spec(reduction=max).reduction is max


def test_the_oldest_architecture_of_a_case_is_spelled_as_cutile_spells_it():
    case = Case(name="fp8", min_arch="SM_90a")
    assert case.min_arch == "sm_90"
    assert [case.runs_on(arch) for arch in ("sm_80", "sm_89", "sm_90", "sm_121")] == [
        False,
        False,
        True,
        True,
    ]
    assert Case(name="fp16").runs_on("sm_80")
    with pytest.raises(SpecError, match=r"Case 'fp8': min_arch 'hopper' names no GPU architecture"):
        Case(name="fp8", min_arch="hopper")


SMALL = Case(name="n8", params={"n": 8}, speed=False)


def test_small_cases_are_checked_with_all_inputs_that_the_kernel_defines():
    declared = spec(
        cases=[SMALL], special_inputs={"sorted": sorted}, undefined_inputs={"nan": "there is none"}
    )
    names = declared.named_inputs(SMALL)
    assert names == (*(name for name in REVEALING if name != "nan"), "sorted")
    assert declared.named_inputs(Case(name="large")) == ()
    assert declared.named_inputs(Case(name="large", named_inputs=["sorted"])) == ("sorted",)
    assert declared.named_inputs(Case(name="n8", speed=False, named_inputs=())) == ()


def test_cases_share_the_named_inputs_so_that_each_is_used_and_meets_all_of_them_in_time():
    cases = [Case(name=f"n{n}", params={"n": n}, speed=False) for n in range(4 * SHARES)]
    timed = Case(name="timed", params={"n": 8})
    plain = Case(name="plain", params={"n": 8}, speed=False, named_inputs=())
    declared = spec(cases=[timed, *cases, plain])
    names = [declared.named_inputs(case) for case in cases]
    for first in range(0, len(cases), SHARES):
        assert sorted(sum(names[first : first + SHARES], ())) == sorted(REVEALING)
    # Dtypes often come in turns: each of them is to meet all names.
    for dtypes in (2, 3, 4):
        met = [{name for share in names[at::dtypes] for name in share} for at in range(dtypes)]
        assert met == [{*REVEALING}] * dtypes
    assert declared.named_inputs(cases[4], every=True) == REVEALING
    two = spec(cases=cases[:2])
    assert {*two.named_inputs(cases[0]), *two.named_inputs(cases[1])} == {*REVEALING}


def test_inputs_are_made_with_the_named_distribution_and_changed_by_special_ones():
    def make(*, dist, layout):
        return lambda shape, dtype: (shape, dtype, dist, layout)

    case = Case(name="n8", params={"n": 8}, layout="padded", speed=False)
    declared = spec(cases=[case], special_inputs={"twice": lambda made: made * 2})
    assert declared.make_inputs(make, case) == (((8,), "float32", "normal", "padded"),)
    assert declared.make_inputs(make, case, "tiny") == (((8,), "float32", "tiny", "padded"),)
    assert declared.make_inputs(make, case, "twice") == (((8,), "float32", "normal", "padded"),) * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"special_inputs": {"a b": sorted}}, "special_inputs 'a b': the name"),
        ({"special_inputs": {"nan": sorted}}, "special_inputs 'nan': the name"),
        ({"undefined_inputs": {"nan": " "}}, "undefined_inputs 'nan': ' ': expected .* and why"),
        ({"undefined_inputs": {"normal": "no"}}, "undefined_inputs 'normal': 'no': expected one of integers"),
        (
            {"cases": [Case(name="a", named_inputs=["tny"])]},
            r"named_inputs has \['tny'\]; defined are integers",
        ),
        (
            {"cases": [SMALL, Case(name="n8-tiny")]},
            "case n8-tiny has the name under which case n8 is checked",
        ),
    ],
)
def test_bad_names_of_inputs_are_errors(changes, message):
    with pytest.raises(SpecError, match=message):
        spec(**changes)


def test_an_unknown_layout_is_an_error():
    with pytest.raises(SpecError, match="layout must be one of contiguous, padded, transposed, shifted"):
        Case(name="a", layout="packed")


@pytest.mark.parametrize(
    ("check", "why"),
    [
        (lambda **_: None, "must be, or return, CheckOptions or a mapping of options; got None"),
        ({"independent": {}}, "'independent'., which are fields of the spec itself"),
        (lambda **_: {"reduction": 3}, "'reduction'"),
    ],
)
def test_options_of_the_check_are_a_mapping_without_the_specs_own_fields(check, why):
    with pytest.raises(SpecError, match=f"KernelSpec 'copy': check .*{why}"):
        spec(check=check).check_of(Case(name="n8", params={"n": 8}))


@pytest.mark.parametrize("check", [{"rtoll": 1e-3}, lambda n: {"rtoll": n}])
def test_an_unknown_option_of_the_check_names_the_known_ones(check):
    said = r"'copy': check has \['rtoll'\]; did you mean 'rtol'\? options are rtol, atol, .*"
    with pytest.raises(SpecError, match=said):
        spec(check=check).check_of(Case(name="n8", params={"n": 8}))


def test_options_of_the_check_may_be_check_options():
    case = Case(name="n8", params={"n": 8})
    kernel = spec(check=CheckOptions(mid="bfloat16", writes=["out"]))
    assert kernel.check_of(case) == {"mid": "bfloat16", "writes": ["out"]}
    assert kernel.check_options(case, mutation_test=True) == CheckOptions(
        reduction=kernel.reduction_of(case), mid="bfloat16", writes=["out"], mutation_test=True
    )
    with pytest.raises(SpecError, match=r"'reduction'., which are fields of the spec itself"):
        spec(check=CheckOptions(reduction=3))


def test_check_kernel_refuses_an_option_that_is_misspelled():
    def copy(x):
        return x

    with pytest.raises(
        TypeError, match="no option 'reducton', nor has the launcher: did you mean 'reduction'"
    ):
        check_kernel(copy, 1, reference=copy, reducton=3)


def test_check_kernel_names_every_option_with_its_default():
    parameters = inspect.signature(CheckKernel.__call__).parameters
    others = {"self", "fn", "args", "reference", "kwargs"}
    named = {name: parameter.default for name, parameter in parameters.items() if name not in others}
    assert named == {option.name: option.default for option in dataclasses.fields(CheckOptions)}


def test_work_has_a_rate_for_each_amount_it_counts():
    assert Work().amounts == {}
    assert Work(tokens=16, bytes=1.8e10).amounts == {"tokens/s": 16, "GB/s": 18}
    with pytest.raises(SpecError, match="tokens must be a finite count, got -1"):
        Work(tokens=-1)


def test_a_model_has_inputs_of_its_own_alone():
    """Those that reveal faults of kernels are of floats, and a model gets tokens."""
    model = ModelSpec(
        name="model",
        launch=print,
        inputs=lambda make: (make((2,), "int64"),),
        verify=lambda tokens: "nothing",  # noqa: ARG005
        cases=[Case(name="tiny", speed=False)],
    )
    assert model.named_inputs(model.cases[0]) == ()
    with pytest.raises(SpecError, match="has no reference"):
        model.reference(1)
