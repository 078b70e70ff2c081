"""A recorded reply as a page of HTML."""
