"""Running a training: arguments, trainers, checkpoints, and what it leaves at its end."""
