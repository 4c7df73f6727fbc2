"""Parts that look for an answer before they give one."""
