"""From chunks to tables: lives, writers, forward passes and their phases; ``Finder`` is the door."""
