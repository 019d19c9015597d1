"""Declared kernels: collection, ids, gates, and what a bad declaration is told."""

import re
import textwrap

import pytest

from pytest_cutile.tile.tensors.seeded import seed_from
from tests.plugin.conftest import KERNEL


def test_every_case_is_collected_under_every_gate(project):
    result = project.run("--collect-only", "-q", "--arch", "sm_90,sm_121", gates="")
    result.stdout.fnmatch_lines(
        [
            "mykernels/scale.py::compile[[]n8-sm_90[]]",
            "mykernels/scale.py::compile[[]n8-sm_121[]]",
            "mykernels/scale.py::correct[[]n8[]]",
            "mykernels/scale.py::speed[[]n8[]]",
        ]
    )


@pytest.mark.parametrize(
    ("case", "others"),
    [
        ('pytest_cutile.Case(name="n8", params={"n": 8}),', ""),
        (
            "made_by(8),",
            'def made_by(n):\n    return pytest_cutile.Case(name=f"n{n}", params={"n": n})\n\n\n',
        ),
        ("dataclasses.replace(FIRST),", 'FIRST = pytest_cutile.Case(name="n8", params={"n": 8})\n\n\n'),
        ("*(pytest_cutile.Case(name=f'n{n}', params={'n': n}) for n in [8]),", ""),
    ],
)
def test_tests_are_where_their_case_is_declared(project, case, others):
    text = KERNEL.replace("import pytest_cutile\n", f"import dataclasses\n\nimport pytest_cutile\n\n{others}")
    declared = 'cases=[pytest_cutile.Case(name="n8", params={"n": 8})]'
    project.kernel(text.replace(declared, f"cases=[\n        {case}\n    ]"))
    tests, _ = project.pytester.inline_genitems("-p", "no:benchmark")
    file, line, _ = tests[0].location
    assert (project.path / file).read_text().splitlines()[line].strip() == case


def test_a_case_that_is_made_when_it_is_asked_for_is_where_it_is_made(project):
    lazy = KERNEL.replace(
        "SPEC = pytest_cutile",
        "def __getattr__(name):\n    return None if name == 'SPECS' else pytest_cutile",
    )
    project.kernel(lazy)
    tests, _ = project.pytester.inline_genitems("-p", "no:benchmark")
    file, line, _ = tests[0].location
    assert "pytest_cutile.Case(" in (project.path / file).read_text().splitlines()[line]


def test_gates_are_selected_by_marker_by_name_and_by_id(project):
    project.run().assert_outcomes(passed=2)
    project.run("-k", "correct", gates="").assert_outcomes(passed=1)
    project.run("mykernels/scale.py::speed", gates="").assert_outcomes(passed=1)
    project.run("mykernels/scale.py::speed[n8]", gates="").assert_outcomes(passed=1)


def test_kernels_and_cases_are_keywords(project):
    project.kernel(KERNEL.replace('name="scale"', 'name="doubled"').replace('name="n8"', 'name="n8x1"'))
    for expression, count in (("doubled", 2), ("n8x1", 2), ("scale", 2), ("halved", 0), ("not doubled", 0)):
        project.run("-k", expression).assert_outcomes(passed=count)


def test_declared_kernels_are_collected_although_testpaths_names_another_folder(project):
    (project.path / "tests").mkdir()
    (project.path / "tests" / "test_one.py").write_text("def test_one(): pass\n")
    with (project.path / "tox.ini").open("a") as ini:
        ini.write("\ntestpaths = tests\n")
    result = project.run(gates="not (cutile_compile or cutile_static)")
    result.assert_outcomes(passed=3)
    project.run("tests", gates="").assert_outcomes(passed=1)


def test_a_wrong_kernel_fails_with_the_elements_and_gets_no_speed_verdict(project):
    project.kernel(KERNEL.replace("return x * 2\n", "return x * 2.01\n", 1))
    result = project.run()
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*scale differs from its reference*", "*n8*wrong result*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    assert not project.baseline.exists()


def test_speed_alone_checks_the_result_first(project):
    project.kernel(KERNEL.replace("return x * 2\n", "return x * 2.01\n", 1))
    result = project.run("--update-baselines", gates="cutile_speed")
    result.assert_outcomes(failed=1)
    assert not project.baseline.exists()


def test_a_kernel_that_writes_nothing_is_seen(project):
    project.kernel(KERNEL.replace("return x * 2\n", "import torch; return torch.empty_like(x)\n", 1))
    result = project.run("-k", "correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*never written*"])


def test_a_kernel_that_raises_shows_its_own_traceback_and_other_cases_go_on(project):
    two = KERNEL.replace(
        'params={"n": 8})]', 'params={"n": 8}), pytest_cutile.Case(name="n9", params={"n": 9})]'
    )
    project.kernel(
        two.replace(
            "return x * 2\n",
            "if x.numel() == 8: raise RuntimeError('tile is too large')\n    return x * 2\n",
            1,
        )
    )
    result = project.run()
    result.assert_outcomes(failed=1, skipped=1, passed=2)
    result.stdout.fnmatch_lines(["*raise RuntimeError('tile is too large')*"])
    result.stdout.no_fnmatch_line("*pytest_cutile/gates*")


def test_a_reference_that_raises_is_named(project):
    project.kernel(KERNEL.replace("reference=lambda x: x * 2", "reference=lambda x: x @ missing"))
    result = project.run("-k", "correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the reference * raised NameError*missing*"])


def test_a_launcher_that_returns_nothing_is_told_to_return_its_output(project):
    project.kernel(KERNEL.replace("return x * 2\n", "pass\n", 1))
    result = project.run("-k", "correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*scale returned None*return the output tensor*"])


def test_running_out_of_memory_in_one_case_is_one_message_and_others_go_on(project):
    two = KERNEL.replace(
        'params={"n": 8})]', 'params={"n": 8}), pytest_cutile.Case(name="n9", params={"n": 9})]'
    )
    error = "torch.OutOfMemoryError('CUDA out of memory. Tried 9 GiB.')"
    raises = f"import torch\n    if x.numel() == 8: raise {error}\n"
    project.kernel(two.replace("return x * 2\n", f"{raises}    return x * 2\n", 1))
    result = project.run()
    result.assert_outcomes(failed=1, skipped=1, passed=2)
    result.stdout.fnmatch_lines(["*scale[[]n8[]]: CUDA is out of memory*Tried 9 GiB*", "*smaller shape*"])


def test_after_a_broken_cuda_context_the_rest_is_not_measured(project):
    two = KERNEL.replace(
        'params={"n": 8})]', 'params={"n": 8}), pytest_cutile.Case(name="n9", params={"n": 9})]'
    )
    raises = "if x.numel() == 8: raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"
    project.kernel(two.replace("return x * 2\n", f"{raises}    return x * 2\n", 1))
    result = project.run("-rs")
    result.assert_outcomes(failed=1, skipped=3)
    result.stdout.fnmatch_lines(["*unusable since scale[[]n8[]]*illegal memory access*"])


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        (
            'cases=[pytest_cutile.Case(name="n8", params={"n": 8})]',
            "cases=[]",
            "*'scale' declares no cases*",
            13,
        ),
        (
            'params={"n": 8})]',
            'params={"n": 8}), pytest_cutile.Case(name="n8", params={"n": 9})]',
            "*two cases named 'n8'*",
            13,
        ),
        (
            "SPEC = pytest_cutile.KernelSpec(",
            "SPEC = dict(",
            "*SPEC must be a pytest_cutile.KernelSpec*got dict*",
            1,
        ),
        (
            "import pytest_cutile\n",
            "import pytest_cutile, cuda.tile_missing\n",
            "*cuda.tile_missing is not installed*",
            1,
        ),
        (
            "SPEC = pytest_cutile.KernelSpec(",
            "SPEC = = pytest_cutile.KernelSpec(",
            "*SyntaxError: invalid*",
            13,
        ),
    ],
)
def test_a_bad_declaration_is_one_clear_error_of_collection(project, old, new, message, line):
    project.kernel(KERNEL.replace(old, new))
    project.kernel(KERNEL.replace('name="scale"', 'name="other"'), name="other")
    project.run("-k", "other").assert_outcomes(errors=1)  # nothing deselects it
    result = project.run("--continue-on-collection-errors")
    result.assert_outcomes(errors=1, passed=2)
    result.stdout.fnmatch_lines([message, f"mykernels/scale.py:{line}: in a module of kernels"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pluggy*.py*")


def test_two_modules_with_one_kernel_name_would_share_baselines(project):
    project.kernel(KERNEL, name="again")
    result = project.run("--continue-on-collection-errors")
    result.assert_outcomes(errors=1, passed=2)
    result.stdout.fnmatch_lines(["*'scale' is declared in*again.py*and in*scale.py*"])


def test_a_listed_module_without_a_spec_is_an_error(project):
    project.kernel("x = 1")
    (project.path / "tox.ini").write_text("[pytest]\ncutile_kernels = mykernels.scale\n")
    result = project.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*scale.py: it is listed in the ini option cutile_kernels but declares no SPEC*"]
    )


def test_a_package_that_declares_nothing_is_a_usage_error(project):
    project.kernel(KERNEL.replace("SPEC =", "SPECs ="))
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "no module of mykernels declares SPEC or SPECS" in result.stdout.str() + result.stderr.str()


def test_an_empty_specs_is_an_error(project):
    project.kernel(KERNEL + "\nSPECS = []\n")
    result = project.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*SPECS must be a list of pytest_cutile.KernelSpec, not empty*"])


def test_a_reexported_spec_is_collected_once(project):
    (project.path / "mykernels" / "__init__.py").write_text("from mykernels.scale import SPEC\n")
    project.run().assert_outcomes(passed=2)


def test_several_specs_in_one_module_have_their_names_in_the_ids(project):
    project.kernel(KERNEL + "\nimport dataclasses\nSPECS = [SPEC, dataclasses.replace(SPEC, name='again')]\n")
    result = project.run("--collect-only", "-q", gates="cutile_speed")
    result.stdout.fnmatch_lines(["*::speed[[]scale-n8[]]", "*::speed[[]again-n8[]]"])


def test_scripts_and_tests_in_the_package_are_not_imported(project):
    for name in ("__main__", "conftest", "test_more"):
        project.kernel("raise SystemExit('imported')", name=name)
    (project.path / "mykernels" / "conftest.py").unlink()
    (project.path / "mykernels" / "test_more.py").write_text("def test_more(): pass\n")
    project.run(gates="not (cutile_compile or cutile_static)").assert_outcomes(passed=3)


def test_a_link_to_the_project_gates_the_same(project, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(project.path)
    result = project.run("--rootdir", str(link), str(link / "mykernels"))
    result.assert_outcomes(passed=2)


def test_last_failed_finds_the_gate_again(project):
    project.kernel(KERNEL.replace("return x * 2\n", "return x * 2.01\n", 1))
    project.run().assert_outcomes(failed=1, skipped=1)
    project.run("--lf").assert_outcomes(failed=1)
    project.kernel(KERNEL)
    project.run("--lf").assert_outcomes(passed=1)


def test_an_unknown_module_is_a_usage_error(project):
    (project.path / "tox.ini").write_text("[pytest]\ncutile_kernels = nowhere\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*cutile_kernels: no module or package 'nowhere'*"])


def test_inputs_may_be_a_dict_of_keyword_arguments(project):
    project.kernel(
        textwrap.dedent(KERNEL)
        .replace(
            'return (make_tensor((n,), "float32"),)', 'return {"x": make_tensor((n,), "float32"), "by": 3.0}'
        )
        .replace("def scale(x):\n    return x * 2", "def scale(*, x, by):\n    return x * by")
        .replace("reference=lambda x: x * 2", "reference=lambda *, x, by: x * by")
    )
    project.run().assert_outcomes(passed=2)


def test_a_case_may_leave_speed_out(project):
    project.kernel(KERNEL.replace('params={"n": 8})', 'params={"n": 8}, speed=False)'))
    project.run().assert_outcomes(passed=10)


def test_a_small_case_is_checked_with_inputs_that_reveal(project):
    small = KERNEL.replace('params={"n": 8})', 'params={"n": 8}, speed=False)')
    swallows = "import torch; return torch.where(x.isnan(), 0, x * 2)\n"
    project.kernel(small.replace("return x * 2\n", swallows, 1))
    result = project.run("-v")
    result.assert_outcomes(passed=9, failed=1)
    result.stdout.fnmatch_lines(
        ["*correct?n8-nan? FAILED*", "*scale differs*", "*pytest 'mykernels/scale.py::correct?n8-nan?'*"]
    )
    project.run("mykernels/scale.py::correct[n8-nan]", gates="").assert_outcomes(failed=1)


def test_a_kernel_may_say_what_it_does_not_define(project):
    small = KERNEL.replace('params={"n": 8})', 'params={"n": 8}, speed=False)')
    project.kernel(small.replace("name=", 'undefined_inputs={"nan": "it is flushed"}, name=', 1))
    project.run("-k", "correct").assert_outcomes(passed=9)


def test_a_seed_makes_the_same_tensors_under_any_name(project):
    shows = "print('INPUT', x.tolist()); return x * 3\n"
    project.kernel(KERNEL.replace("return x * 2\n", shows, 1))
    result = project.run("-k", "correct")
    values = {line for line in result.outlines if "INPUT" in line}
    case = f'params={{"n": 8}}, seed={seed_from("mykernels/scale.py::correct[n8]")})'
    other = KERNEL.replace('name="n8"', 'name="other"').replace('params={"n": 8})', case)
    project.kernel(other.replace("return x * 2\n", shows, 1))
    result = project.run("-k", "correct")
    assert {line for line in result.outlines if "INPUT" in line} == values


def test_what_is_timed_is_the_same_wherever_the_file_stands(project):
    # Tracing draws inputs, too.
    drawn = """
    from pytest_cutile.tile.compiler import pretended_backing

    x = make_tensor((n,), 'float32')
    if pretended_backing() is None:
        print('INPUT', x.tolist())
    return (x,)
"""
    project.kernel(KERNEL.replace('    return (make_tensor((n,), "float32"),)\n', drawn, 1))

    def inputs(gate: str) -> set[str]:
        result = project.run("-k", gate, "-s", gates="")
        result.assert_outcomes(passed=1)
        return {line[line.index("INPUT") :] for line in result.outlines if "INPUT" in line}

    timed, checked = inputs("speed"), inputs("correct")
    (project.path / "mykernels").rename(project.path / "moved")
    (project.path / "tox.ini").write_text("[pytest]\ncutile_kernels = moved\n")
    # What is checked, before it is timed and alone, is drawn by the test's id.
    assert len(timed) == len(checked) + 1 == 2
    assert len(inputs("speed") & timed) == 1
    assert not inputs("correct") & checked


def test_a_case_is_skipped_on_architectures_older_than_it_needs(project):
    project.kernel(KERNEL.replace('params={"n": 8})', 'params={"n": 8}, min_arch="SM100a")'))
    result = project.run("-rs", "--arch", "sm_90,sm_100", "-k", "sm_90 or correct or speed", gates="")
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(["*4*scale?n8? needs sm_100 or newer*"])
    project.kernel(KERNEL.replace('params={"n": 8})', 'params={"n": 8}, min_arch="sm_90")'))
    project.run().assert_outcomes(passed=2)


def test_the_same_test_makes_the_same_tensors(project):
    project.kernel(KERNEL.replace("return x * 2\n", "print('INPUT', x.tolist()); return x * 2\n", 1))
    first = project.run("-k", "correct", "-s").stdout.str()
    second = project.run("-k", "correct", "-s").stdout.str()
    line = next(line for line in first.splitlines() if "INPUT" in line)
    assert line in second


def test_params_that_fit_no_function_are_a_bad_declaration_at_the_line_of_the_case(project):
    project.edit('params={"n": 8}', 'params={"m": 8}')
    result = project.run()
    text = result.stdout.str()
    line = next(
        n
        for n, line in enumerate((project.path / "mykernels" / "scale.py").read_text().splitlines(), start=1)
        if '"m": 8' in line
    )
    assert re.search(
        r"case 'n8': its params \(.*\) do not fit inputs\(.*n.*\): missing a required .*argument: 'n'", text
    )
    assert f"mykernels/scale.py:{line}: in a module of kernels" in text
    assert "seed" not in text


def test_a_value_that_an_option_does_not_take_is_one_sentence_at_the_case(project):
    project.edit("work=lambda n:", "reduction=lambda n: n / 2, work=lambda n:")
    result = project.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E   KernelSpec 'scale': case 'n8': reduction is the length of a sum, an int*; got 4.0"]
    )
    result.stdout.no_fnmatch_line("*pytest_cutile/*.py*")


@pytest.mark.parametrize("first", ["import nowhere", "def (", "1 / 0"])
def test_what_is_wrong_with_a_named_file_is_said_once(project, first):
    project.kernel(f"{first}\n{KERNEL}")
    project.run("mykernels/scale.py").assert_outcomes(errors=1)


def test_test_functions_of_a_named_file_of_kernels_run(project):
    project.kernel(f"{KERNEL}\n\ndef test_more(): pass\n")
    project.run("mykernels/scale.py", "-k", "test_more", gates="").assert_outcomes(passed=1)
