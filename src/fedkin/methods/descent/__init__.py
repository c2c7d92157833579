"""Mini-batch descent between two synchronizations, for methods that differ in what the center does."""
