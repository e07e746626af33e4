"""Prices against measurements of other people: rows, refits without what is predicted, families with bars."""
