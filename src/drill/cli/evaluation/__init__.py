"""`drill evaluate`, `dynamic` and `cache`, and what they run for each task."""
