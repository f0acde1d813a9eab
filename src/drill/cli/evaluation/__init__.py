"""`drill evaluate`, `dynamic` and `cache`, and the rows that they print and save."""
