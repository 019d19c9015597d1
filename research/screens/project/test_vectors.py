"""What a project has that calls the fixtures itself."""

from vectors import double


def test_double(make_tensor, check_kernel):
    for n in (128, 256, 300):
        x = make_tensor((n,), "float32")
        check_kernel(double, x, reference=lambda x: x * 2)
