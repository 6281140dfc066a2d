"""Sweeps: trainings of a model with other values of its configuration, chosen by Optuna, each in its own process."""
