"""Two daemons, one PostgreSQL: how fast the second takes over, and that no run is done twice."""
