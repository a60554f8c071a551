"""Process trees, signals, full disks, JSON text: what is the operating system's."""
