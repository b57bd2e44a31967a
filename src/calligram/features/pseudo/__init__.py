"""Words for images without captions: region classes, classifier labels and predicted caption words."""
