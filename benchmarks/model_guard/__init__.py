"""How soon the guard for models acts on planted drift, and how seldom on models that hold."""
