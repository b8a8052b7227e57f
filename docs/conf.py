"""Sphinx settings. Warnings are errors in `nox -s docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.ext.napoleon.docstring import GoogleDocstring

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "omni_async"
author = "The omni_async contributors"
copyright = author

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "option_tables",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "omni_async"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
add_module_names = False

# Napoleon takes what stands before the first colon of an attribute's docstring for its type;
# here types are annotated, and a colon is punctuation.
GoogleDocstring._parse_attribute_docstring = GoogleDocstring._consume_to_end
