"""Updates while serving: what lies in the folder, what is taken next, how it becomes visible, how one goes back."""
