"""What a step minimises: named terms over a batch."""
