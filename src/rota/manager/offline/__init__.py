"""What works without a manager: finding batch systems, trying a site, dry runs, restoring a backup, and the relay."""
