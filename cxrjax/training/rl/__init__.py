"""Reinforcement learning and preference tuning; only `training/objectives.py` chooses it."""
