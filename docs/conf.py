"""The site: these pages by Sphinx and MyST. Built by scripts/site, with warnings as errors."""

from __future__ import annotations

import runpy
from pathlib import Path

project = "specollama"
version = release = runpy.run_path(str(Path(__file__).parents[1] / "specollama" / "_version.py"))["__version__"]
extensions = ["myst_parser"]
exclude_patterns = ["conf.py"]
myst_heading_anchors = 4  # links to headings, as GitHub makes them
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]  # shell sessions and shortened JSON are no whole programs
html_theme = "furo"
html_title = f"specollama {version}"
html_copy_source = False
html_show_sphinx = False
