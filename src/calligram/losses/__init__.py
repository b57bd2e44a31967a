"""Losses: functions of tensors. The modules import nothing from the other packages of the project."""
