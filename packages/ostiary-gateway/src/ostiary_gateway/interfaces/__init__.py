"""Contracts of the gateway's plugins, one module per plugin type.

A provider is any object with the methods of its contract; there is no base class, and one object may implement several
contracts. Providers are found through entry points (`ostiary_gateway.catalog`). The suites in `ostiary_gateway.testing`
check a contract.

Optional capabilities are Protocols too, checked when a provider is loaded (`ostiary_gateway.capabilities`): methods or
values that the gateway uses if they exist, or a bool that declares what the provider needs or implies. An undeclared
bool counts as False. The gateway checks capabilities, never a provider's name. `VERSION` increases when a contract
changes in a way that affects existing providers.
"""

VERSION = 1
