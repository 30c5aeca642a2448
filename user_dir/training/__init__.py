"""Training: optimizer, criterion, and checks of the inputs."""
