"""Updates models while they serve: what is in the folder, what is taken next, how it is shown, and rolled back."""
