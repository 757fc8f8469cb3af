"""What a plugin of the gateway must be, and what it may be able to: one contract per file.

A provider is any object with the methods of its contract; it inherits nothing. One object may be several of them. It is
found by its entry point (`ostiary_gateway.catalog`), and the suites in `ostiary_gateway.testing` judge whether it keeps
the contract.

Beside each contract stand its optional abilities and its traits, both as Protocols that are checked when a provider is
loaded (`ostiary_gateway.capabilities`). An ability is one or more methods or values that the gateway uses if they are
there. A trait is a bool that says what the provider needs or implies; one that is not declared is taken for False, and
its docstring says what follows from that. The gateway asks for abilities and traits, and never for a provider's name.
`VERSION` rises when a contract changes in a way that an existing provider would notice.
"""

VERSION = 1
