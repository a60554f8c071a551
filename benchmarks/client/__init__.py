"""What the client costs the process of an agent."""
