"""Self-contained HTML pages in one visual style: their frame, tables, charts; and the pages of each verb.

A page opens from a file, makes no request, and runs only its own scripts: its Content-Security-Policy names them by their digests. All text
that comes from data is escaped, and characters that are not visible are shown as escapes.
"""
