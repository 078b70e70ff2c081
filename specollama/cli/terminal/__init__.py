"""Code that the commands share: flags, output, progress, attachments, the editor."""
