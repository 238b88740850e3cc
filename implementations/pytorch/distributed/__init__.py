"""Process group and rendezvous, gradient synchronisation, and the watchdog that detects stalled ranks."""
