"""The commands that a person types; only the table of commands imports from here."""
