"""The administration area: tables of sessions, decisions and accounts, with search and paging."""
