"""Words for images without captions: classes of regions, labels of a classifier, learnt words."""
