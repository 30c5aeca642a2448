"""How a model is trained: optimizer, criterion, and checks of what is trained with."""
