"""The documentation's site: `make docs` builds it, strictly, from the pages as they are in the repository.

The source is the top of the repository, so that a link between pages, studies and code is the same link in the repository and on the site.
"""

import sys
from pathlib import Path

from hetsim.version import __version__

sys.path.insert(0, str(Path(__file__).parent))

from notebooks import Notebook

project = "hetsim"
author = "the hetsim developers"
release = __version__
root_doc = "docs/index"
include_patterns = ["docs/**.md", "docs/**.ipynb", "studies/**.md", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = ["**/tables.md", "**/.ipynb_checkpoints", ".*", "build", "runs", "hetsim", "tests"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath", "smartquotes"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]
default_role = "code"
smartquotes_action = "D"  # only dashes, as quotes in docstrings are code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"

html_theme = "furo"
html_title = f"hetsim {release}"
html_extra_path = ["site"]
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False


def setup(app):
    """Let a notebook be a page, as it is stored: no cell runs."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(Notebook)
