"""Updates while serving: what lies in a model's folder, what is taken next, how it becomes visible, how it goes back."""
