"""Comparisons of orders: several trainings, and a table and a picture of them."""
