"""Questions in SQL over files and lakes, whatever engine answers them.

`views` says which tables some paths have and how their rows are got, `text` reads a statement far enough to know which of them it wants,
`functions` are what SQL has besides; an Engine (`engine`) answers. Spark's is in `rawlog.spark.query`, DuckDB's in `duck`.
"""
