"""A trained model in the forms that other programs serve."""
