"""From a folder or collection of pictures to a library."""
