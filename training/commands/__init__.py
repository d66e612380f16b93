"""What a person types; nothing else imports from here but the table of commands."""
