"""The mixers: a file for each kind, which also says how the sublayer of its letter is made."""
