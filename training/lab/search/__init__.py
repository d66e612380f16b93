"""The search for an order: what is drawn, mixed, trained, priced, compared and drawn."""
