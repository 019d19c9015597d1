"""The documentation site: `scripts/docs` builds it, and a warning is an error.

The source folder is the repository: pages link to reports and examples outside of `docs/`, as on GitHub.
"""

from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring

from pytest_cutile.words.version import version as installed_version

project = "pytest-cutile"
copyright = "The pytest-cutile developers"  # noqa: A001 - Sphinx's name
version = release = installed_version()
extensions = ["myst_parser", "sphinx.ext.autodoc"]

root_doc = "docs/index"
include_patterns = ["docs/**", "research/README.md", "research/reports/*", "examples/*/README.md"]
include_patterns += [
    "studies/README.md",
    "studies/*/README.md",
    "models/README.md",
    "models/results/**/*.md",
    "studies/results/**/*.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "changelog.d/README.md",
]
exclude_patterns = ["docs/README.md"]  # docs/index.md includes it

myst_heading_anchors = 4  # as GitHub makes them
highlight_language = "text"  # of indented blocks: commands and their output
default_role = "code"  # docstrings have `names` in single backticks
add_module_names = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = "pytest-cutile"
html_extra_path = ["_site"]  # the first page of the site leads to docs/index.html
html_show_sourcelink = False


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _read_google_style)


def _read_google_style(
    _: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Read a docstring as the extension napoleon does, but for fields: a colon there is no type's end."""
    if what in ("module", "class", "method", "function"):
        lines[:] = GoogleDocstring(lines, what=what, name=name, obj=obj, options=options).lines()
