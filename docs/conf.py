"""Settings of the documentation site: ``make docs``."""

from diffattn import __version__

project, author, release = "diffattn", "the diffattn authors", __version__
copyright = "the diffattn authors, Apache-2.0"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "diffattn"
html_copy_source = False
html_theme_options = {"source_repository": "", "navigation_with_keys": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Source"]
python_use_unqualified_type_names = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
