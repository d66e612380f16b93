"""A first look: small models of each kind, trained in minutes."""
