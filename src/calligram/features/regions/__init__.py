"""Region proposals, object detectors and features of regions."""
