"""Pages of HTML with tables and plots: one file each, without scripts and without anything from elsewhere."""
