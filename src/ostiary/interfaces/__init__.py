"""What a plugin of the gateway must be: one contract per file.

A provider is any object with these methods; it inherits nothing. One object may be several of them. It is found
by its entry point (`ostiary.core.catalog`), and the suites in `ostiary.testing` judge whether it keeps the contract.
`VERSION` rises when a contract changes in a way that an existing provider would notice.
"""

VERSION = 1
