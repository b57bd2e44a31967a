"""Image inputs: pixels, backbone features, stored features and regions."""
