"""What a policy can call: descriptions of functions, what they return as text, and the process that they run in."""
