"""A library over HTTP: JSON, pictures, metrics, and the search page. Needs ``calligram[serve]``."""
