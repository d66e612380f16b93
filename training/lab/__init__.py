"""Benches, studies, searches and the demo: what is measured, compared and tried."""
