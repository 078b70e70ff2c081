"""What happened in a reply, round by round and token by token: written as JSON lines, shown as a page."""
