"""What goes to MLPerf: describing a system, checking a package harder than the official tools do, and making one."""
