"""Microsoft Entra ID: its users."""
