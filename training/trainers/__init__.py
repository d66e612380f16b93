"""Running a training: arguments, trainers, checkpoints, and what is left behind at its end."""
