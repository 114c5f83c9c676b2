"""Many runs of one recipe: a grid of settings times seeds, run resumably, told as one table."""
