"""Image inputs: pixels, features of a backbone, stored features, regions."""
