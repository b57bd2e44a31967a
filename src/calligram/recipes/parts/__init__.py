"""The parts that recipes are composed of: settings, towers, stages, mined negatives, pseudo pairs."""
