"""`ModelSpec`: a program of many kernels under the gates `correct` and `speed`, in tokens/s."""

import pytest

MODEL = """
import pytest_cutile


def generate(x):
    return x * 2


def inputs(make_tensor, *, n):
    return (make_tensor((n,), "float32"),)


def verify(x):
    assert (generate(x) == x * 2).all(), "the logits differ: KL divergence 0.3 nats of 0.001 allowed"
    return "KL divergence 1e-5 nats of 1e-3 allowed"


SPEC = pytest_cutile.ModelSpec(
    name="model",
    launch=generate,
    inputs=inputs,
    verify=verify,
    work=lambda n: pytest_cutile.Work(tokens=800, bytes=1e8),
    cases=[
        pytest_cutile.Case(name="n8", params={"n": 8}),
        pytest_cutile.Case(name="tiny", params={"n": 1}, speed=False),
    ],
)
"""


@pytest.fixture
def model(project):
    project.kernel(MODEL)
    return project


def test_it_is_asked_what_a_whole_program_can_answer(model):
    result = model.run("--collect-only", "-q", gates="")
    result.stdout.fnmatch_lines(["*::correct?n8?", "*::speed?n8?", "*::correct?tiny?", "3 tests collected*"])


def test_its_speed_is_in_tokens_per_second_and_what_was_compared_is_told(model):
    result = model.run("-v", "--kernel-json", "run.json")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*model *40 us *2e+07 tokens/s *52 % *no-baseline"])
    text = (model.path / "run.json").read_text()
    assert "KL divergence 1e-5 nats of 1e-3 allowed" in text
    assert '"tokens": 800' in text


def test_a_wrong_model_fails_by_its_own_message_and_gets_no_speed(model):
    model.edit("return x * 2", "return x * 3")
    result = model.run("-rs")
    result.assert_outcomes(failed=2, skipped=1)
    result.stdout.fnmatch_lines(["*the logits differ: KL divergence 0.3 nats of 0.001 allowed*"])
    result.stdout.fnmatch_lines(["*the gate correct fails, so the case's speed is not compared*"])


def test_a_slower_model_is_a_regression_beside_the_committed_one(model):
    model.commit()
    model.times(40.0)
    model.run("--update-baselines").assert_outcomes(passed=3)
    model.commit()
    model.edit("return x * 2", "return x + x")
    model.times(44.0, baseline=40.0)
    result = model.run()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*model?n8? on sm_90 (NVIDIA H200) is 10.0% slower than its baseline*", "*rate*tokens/s*tokens/s*"]
    )
    assert model.data["entries"]["model[n8]"]["records"][0]["work"]["tokens"] == 800


def test_an_unchanged_model_is_measured_all_the_same(model):
    """Nobody knows beforehand what it compiles."""
    model.times(40.0)
    model.run("--update-baselines").assert_outcomes(passed=3)
    model.times(50.0)
    result = model.run()
    result.assert_outcomes(passed=2, failed=1)


def test_packages_of_listed_modules_are_not_imported_to_find_them(model):
    """They may be slow to import, as those of language models, and other kernels are run."""
    (model.path / "slow").mkdir()
    (model.path / "slow" / "__init__.py").write_text("raise ImportError('not installed')")
    (model.path / "slow" / "specs.py").write_text(MODEL.replace('name="model"', 'name="other"'))
    model.pytester.makeini("[pytest]\ncutile_kernels =\n  mykernels\n  slow.specs\nfilterwarnings = error\n")
    model.run("mykernels").assert_outcomes(passed=3)
    model.run("slow").stdout.fnmatch_lines(["*not installed*"])
