"""The HTTP server of a library: a JSON API, pictures, metrics and the search page. Needs ``calligram[serve]``."""
