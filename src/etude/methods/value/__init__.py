"""Learning from what is stored: values of actions, and policies that follow them."""
