"""Where rows are kept: lakes of Iceberg tables, Parquet files, files of another system."""
