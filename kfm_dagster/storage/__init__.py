"""Database engine and migrations; object stores."""
