"""For those who write exec credential plugins: everything but the part that knows the identity system.

    from datetime import timedelta
    from ostiary.plugin import ExecInfo, Token, exec_plugin

    @exec_plugin
    def main(info: ExecInfo) -> Token:
        return Token(fetch_a_token(), expires_in=timedelta(minutes=15))

    if __name__ == "__main__":
        main()

The version that was asked for, the shape of the answer, a clean stdout, readable errors and the exit code
are taken care of.
"""

from ostiary.plugin.decorator import Program, exec_plugin
from ostiary.plugin.exec_info import ExecInfo
from ostiary.plugin.outcome import Certificate, SignInRefused, Token
from ostiary.wire.client_authentication import ClusterInfo

__all__ = ["Certificate", "ClusterInfo", "ExecInfo", "Program", "SignInRefused", "Token", "exec_plugin"]
