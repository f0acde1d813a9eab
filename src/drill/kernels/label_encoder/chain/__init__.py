"""All label maps in one launch (Hopper)."""
