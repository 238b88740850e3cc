"""Process groups, gradient synchronisation, and the watchdog of a rank."""
