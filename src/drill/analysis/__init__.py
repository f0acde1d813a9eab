"""What a layer costs and what it is good for, measured."""
