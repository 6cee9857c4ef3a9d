"""Sphinx's settings of the site; `docs/site.py` builds it."""

from rawlog import __version__

project, author, release = "rawlog", "the rawlog developers", __version__
extensions = ["myst_parser"]
html_theme = "furo"  # its fonts are the reader's own, and nothing is loaded from elsewhere
html_title = f"rawlog {release}"
html_static_path = ["_static"]
html_css_files = ["rawlog.css"]
html_show_sphinx = html_show_copyright = html_copy_source = html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
myst_heading_anchors = 4  # links to headings are checked
pygments_style, pygments_dark_style = "friendly", "github-dark"
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]  # a block in a language that Pygments does not know stays plain
