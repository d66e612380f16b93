"""What a folder on the Hub needs: code, a card, an upload; and the check of folders that come from there."""
