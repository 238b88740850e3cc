"""What binds a benchmark, an implementation, a system and a result: configuration, logging, launching, the command line."""
