"""SQL queries over files and lakes, for any engine.

`views`: the tables of some paths and where their rows are; `text`: which tables and columns a statement needs; `functions`: functions
that rawlog adds to SQL; `engine`: the interface of an engine. Spark's is in `rawlog.spark.query`, DuckDB's in `duck`.
"""
