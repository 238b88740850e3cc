"""What binds benchmark, implementation, system and result: configuration, logging, launching, the command line."""
