# Sourced by scripts/demo and scripts/test: a virtual environment with the tested versions, made once and again when
# what goes into it changes. PYTHON chooses the interpreter.
stamp=$(cat pyproject.toml constraints.txt | cksum)
if [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
    python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        { echo "pytest-cutile needs Python 3.11 or later; set PYTHON to one" >&2; exit 1; }
    echo "setting up .venv (half a minute)"
    "$python" -m venv .venv
    # Python compiles what is imported; compiling all of it here takes as long as the rest of the installation.
    # torch first and constrained: pip takes the CPU build where one is offered, not several GB for CUDA.
    .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt torch numpy
    .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[all,models]' scipy selenium
    echo "$stamp" >.venv/stamp
fi
