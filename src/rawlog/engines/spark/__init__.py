"""Spark: the engine that runs jobs and questions, the data source and sink `rawlog`, sessions."""
