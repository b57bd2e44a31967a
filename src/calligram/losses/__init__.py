"""Losses as functions of tensors. They import nothing else of ours."""
