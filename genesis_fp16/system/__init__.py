"""Process trees, signals, full disks: what is the operating system's."""
