"""SQL over files and lakes, for any engine."""
