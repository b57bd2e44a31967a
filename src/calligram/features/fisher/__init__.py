"""Fisher vectors of texts: ICA of word vectors, mixtures of Gaussians and Laplacians, streaming PCA."""
