"""The endpoints below ``/api``, one module for each kind of thing."""
