"""Training: optimizer, criterion, data with BPE-dropout, what restarts need, and checks of the inputs."""
